"""Reads sentence-transformers' own JSON files in a model's folder.

modules.json lists the steps: a transformer, and of an embedder Pooling (SpladePooling where it is
sparse, none where each token has a vector), and perhaps Dense, LayerNorm, Normalize, each with a
config.json in a folder of its own. keys.py says of every key what becomes of it. Without
modules.json the files say nothing, as in sentence-transformers itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.log import info
from hf_triton.runtime.regular_file import read_json

from . import keys
from .keys import MODULES_FILE, POOLING_FLAGS, TRANSFORMER_FILES, WHOLE_FILE, Keys
from .late_interaction import DOCUMENT, QUERY, USES, LateInteraction, own_keys, stanford_keys

MODES = tuple(POOLING_FLAGS.values())
# sentence-transformers' classes of models that are served.
Kind = Literal["SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder"]
# Each one's transformer_task, the output of its module, and the output of transformers' model.
_EMBEDS = ("feature-extraction", "token_embeddings", "last_hidden_state")
_COMPUTED = {
    "SentenceTransformer": _EMBEDS,
    "CrossEncoder": ("sequence-classification", "scores", "logits"),
    "SparseEncoder": ("fill-mask", "token_embeddings", "logits"),
    "MultiVectorEncoder": _EMBEDS,
}
# The module that comes after the transformer, and those that may come after both.
_POOLING = {"SentenceTransformer": keys.POOLING_MODULE, "SparseEncoder": keys.SPLADE_MODULE}
_LATER = {
    "SentenceTransformer": {*keys.POST_POOLING},
    "MultiVectorEncoder": {*keys.POST_POOLING, keys.MASK_MODULE},
}
_DECODER_TASKS = ("text-generation", "any-to-any")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# Those of models of many vectors: of each query's vector the best product with one of the
# document's, their sum or their mean.
LATE_SIMILARITIES = ("maxsim", "meanmaxsim")
_CUTS = ("longest_first", "only_first", "only_second")
_CHECKED_PACKAGES = {"pytorch": "torch", **{n: n for n in ("torch", "transformers", "tokenizers")}}


@dataclass(frozen=True)
class Step:
    """A module: ``kind`` is its class, ``folder`` holds its weights, among others where it
    ``is_inside`` the transformer's.
    """

    kind: str
    folder: Path
    config: Mapping[str, Any]
    is_inside: bool = False


@dataclass(frozen=True)
class SentenceFiles:
    """``folder`` has the transformer's files. ``kind`` is None where sentence-transformers did not
    save the model. ``max_length`` replaces the tokenizer's own, ``cuts`` says which text of a pair
    is shortened. ``pooling`` are modes whose vectors are concatenated; None where no file says
    anything. ``splade`` is SpladePooling's configuration, ``late`` how texts of many vectors are
    read; each is None for other models.
    """

    folder: Path
    kind: Kind | None = None
    max_length: int | None = None
    cuts: str = "longest_first"
    adds_special_tokens: bool = True
    do_lower_case: bool = False
    config_kwargs: Mapping[str, Any] = field(default_factory=dict)
    processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    pooling: tuple[str, ...] | None = None
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    dimensions: int | None = None
    similarity: str = "cosine"
    activation_fn: str | None = None
    splade: Mapping[str, Any] | None = None
    late: LateInteraction | None = None


def read_sentence_files(files: Path, kinds: Sequence[Kind]) -> SentenceFiles:
    """Reads what there is for a model of one of these kinds; none for tasks that
    sentence-transformers has no models for. Raises LoadError.
    """
    listed = _read(files / MODULES_FILE, [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise LoadError(f"{MODULES_FILE}: a list of modules was expected")
    may_be_stanfords = not listed and "MultiVectorEncoder" in kinds
    stanford, projection = (stanford_keys(files) if may_be_stanfords else None) or ({}, {})
    if not listed and not stanford:
        return SentenceFiles(files)
    if not kinds:
        return SentenceFiles(_folder(files, listed[0]))
    whole = stanford or _object(files, files / WHOLE_FILE, keys.WHOLE)
    saved = whole.get("model_type", "SentenceTransformer")
    if pylate := own_keys(whole):
        saved = "MultiVectorEncoder"  # PyLate's own name is ColBERT
    if kinds == ("CrossEncoder",) and saved == "SentenceTransformer":
        return SentenceFiles(_folder(files, listed[0]))
    if saved not in kinds:
        served = ", ".join(kinds)
        raise LoadError(f"{WHOLE_FILE}: model_type: got {saved}, this task serves {served}")
    kind: Kind = next(one for one in kinds if one == saved)
    _check_requirements(_part(WHOLE_FILE, whole, "requirements"))
    whole = {**whole, **pylate}
    steps = [_step(files, module, kind) for module in listed]
    if stanford:
        dense = Step("Dense", files, projection, is_inside=True)
        steps = [Step(keys.TRANSFORMER_MODULE, files, {}), dense]
    transformer, pooling = _transformer_and_pooling(steps, kind)
    is_late = kind == "MultiVectorEncoder"
    folder, table = transformer.folder, keys.TRANSFORMER
    configs = ((n, _object(files, folder / n, table)) for n in TRANSFORMER_FILES)
    nothing: tuple[str, Mapping[str, Any]] = (keys.STANFORD_FILE if stanford else "", {})
    where, config = next((found for found in configs if found[1]), nothing)
    of_late = [key for key in keys.LATE_KEYS if config.get(key) is not None]
    if of_late and not is_late:
        why = "it belongs to models of many vectors for each text"
        raise LoadError(f"{where}: {of_late[0]} is not served here: {why}")
    _check_output(where, config, kind)
    _kwargs(where, config, "model_args", "model_kwargs", keys.MODEL_KWARGS)  # none changes answers
    tokenizer = _kwargs(where, config, "tokenizer_args", "processor_kwargs", keys.PROCESSOR_KWARGS)
    processing = _part(where, config, "processing_kwargs", keys.PROCESSING)
    called, given = f"{where}: processing_kwargs", dict[str, Any]()
    for name in ("text", "common"):
        given |= _part(called, processing, name, keys.TEXT)
    longest = (
        _count(called, given, "max_length")
        or _count(where, tokenizer, "model_max_length")
        or _count(where, config, "max_seq_length")
    )
    prompts, similarity = _prompts(whole), str(whole.get("similarity_fn_name")).lower()
    known = LATE_SIMILARITIES if is_late else SIMILARITIES
    default, cut = known[0], "truncate_dim"
    if kind == "SparseEncoder":
        default, cut = "dot", "max_active_dims"
    mask = next((step.config for step in steps if step.kind == keys.MASK_MODULE), pylate)
    late = None
    if is_late:
        late = _late(where, {**whole, **config}, mask, pylate.get("prompts", {}), longest)
        lengths = [length for length in late.lengths.values() if length]
        longest = max(lengths) if len(lengths) == len(USES) else None
    post_pooling = [step for step in steps if step.kind in keys.POST_POOLING]
    if pylate and mask is pylate:  # it normalizes without saying so
        post_pooling.append(Step("Normalize", files, {}))
    return SentenceFiles(
        transformer.folder,
        kind,
        longest,
        _cuts(called, given.get("truncation")),
        bool(given.get("add_special_tokens", True)),
        bool(config.get("do_lower_case", False)),
        config_kwargs=_kwargs(where, config, "config_args", "config_kwargs", keys.CONFIG_KWARGS),
        processor_kwargs=tokenizer,
        pooling=_modes(pooling) if kind == "SentenceTransformer" and pooling else None,
        include_prompt=pooling is None or bool(pooling.config.get("include_prompt", True)),
        steps=tuple(post_pooling),
        prompts=prompts,
        default_prompt_name=whole.get("default_prompt_name"),
        dimensions=_count(WHOLE_FILE, whole, cut),
        # Another name is left out, as in sentence-transformers.
        similarity=similarity if similarity in known else default,
        activation_fn=whole.get("activation_fn"),
        splade=pooling.config if kind == "SparseEncoder" and pooling else None,
        late=late,
    )


def _late(
    where: str,
    config: Mapping[str, Any],
    mask: Mapping[str, Any],
    markers: Mapping[str, str],
    longest: int | None,
) -> LateInteraction:
    """``config`` is the transformer's, ``mask`` that of MultiVectorMask; ``longest`` is for uses
    without a length of their own.
    """
    expansion = _part(where, config, "query_expansion", keys.EXPANSION)
    strategy, tasks = expansion.get("strategy"), mask.get("skiplist_tasks") or DOCUMENT
    filled = _count(where, expansion, "length") or 0
    lengths = {use: _count(where, config, f"{use}_length") or longest for use in USES}
    if (asked := lengths[QUERY]) or strategy == "fixed":  # one that is fixed is cut to it
        lengths[QUERY] = filled if strategy == "fixed" else max(asked or 0, filled)
    if expansion and (strategy not in ("fixed", "min") or not filled):
        got = f"got strategy {strategy!r} and length {filled}, known: fixed and min with a length"
        raise LoadError(f"{where}: query_expansion: {got}")
    return LateInteraction(
        lengths,
        filled,
        bool(expansion.get("attend")),
        expansion.get("token"),
        tuple(mask.get("skiplist_words") or ()),
        (tasks,) if isinstance(tasks, str) else tuple(tasks),
        tuple(filter(str.strip, markers.values())),
    )


def _step(files: Path, module: Mapping[str, Any], model: Kind) -> Step:
    kind = str(module.get("type") or "")
    package, _, name = keys.ALIASES.get(kind, kind).rpartition(".")
    name = keys.ALIASES.get(name, name)
    is_own = package.split(".")[0] == "sentence_transformers"
    if not is_own or name not in keys.SERVED_MODULES:
        why = keys.REFUSED_MODULES.get(name) if is_own else None
        allowed = ", ".join(keys.SERVED_MODULES)
        raise LoadError(
            f"{MODULES_FILE}: {kind} is not served here{f': {why}' if why else ''}; of "
            f"sentence-transformers' own: {allowed}"
        )
    folder = _folder(files, module)
    if name == keys.TRANSFORMER_MODULE:
        return Step(name, folder, {})
    config = _object(files, folder / "config.json", keys.MODULES[name])
    # A step that changes tokens where texts have one vector, or makes scores.
    served = "token_embeddings" if model == "MultiVectorEncoder" else "sentence_embedding"
    for key in ("module_input_name", "module_output_name") if name in keys.POST_POOLING else ():
        tensor = config.get(key) or served
        if tensor != served:
            where = f"{folder.name}/config.json"
            raise LoadError(f"{where}: {key} is {tensor}; only {served} is served here")
    return Step(name, folder, config)


def _folder(files: Path, module: Mapping[str, Any]) -> Path:
    path = PurePosixPath(str(module.get("path") or ""))
    if path.is_absolute() or ".." in path.parts:
        raise LoadError(f"{MODULES_FILE}: path {path} leads out of the model's folder")
    return files / path


def _transformer_and_pooling(steps: Sequence[Step], kind: Kind) -> tuple[Step, Step | None]:
    computing = [step for step in steps if step.kind != keys.TRAINING_MODULE]
    kinds = [step.kind for step in computing]
    first = [keys.TRANSFORMER_MODULE, *filter(None, [_POOLING.get(kind)])]
    if kinds[: len(first)] != first or {*kinds[len(first) :]} - _LATER.get(kind, set()):
        expected = ", ".join(first)
        raise LoadError(f"{MODULES_FILE}: got {', '.join(kinds)}; a {kind} begins with {expected}")
    return computing[0], computing[1] if len(first) > 1 else None


def _cuts(where: str, value: Any) -> str:
    """Reads which text of a pair is cut where a request wants texts cut."""
    if value is None or isinstance(value, bool) or value == "do_not_truncate":
        return _CUTS[0]
    if value not in _CUTS:
        raise LoadError(f"{where}: truncation: got {value!r}, known: {', '.join(_CUTS)}")
    return str(value)


def _check_output(where: str, config: Mapping[str, Any], kind: Kind) -> None:
    """Raises LoadError where the module computes something else than a model of this kind."""
    task, module_output, output = _COMPUTED[kind]
    found_task = config.get("transformer_task") or task
    if found_task != task:
        why = f" ({keys.WORD_SCORE})" if found_task in _DECODER_TASKS else ""
        raise LoadError(f"{where}: transformer_task: got {found_task}, expected {task}{why}")
    modalities = _part(where, config, "modality_config", keys.MODALITIES)
    if not modalities:
        return
    where = f"{where}: modality_config"
    found = _part(where, modalities, "text", keys.MODALITY)
    computed = {
        "method": (found.get("method"), "forward"),
        "method_output_name": (found.get("method_output_name"), output),
        "module_output_name": (config.get("module_output_name"), module_output),
    }
    for name, (got, expected) in computed.items():
        if got not in (expected, [expected]):
            raise LoadError(f"{where}: text: {name}: got {got!r}, expected {expected}")


def _modes(step: Step) -> tuple[str, ...]:
    named = step.config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    flagged = [mode for flag, mode in POOLING_FLAGS.items() if step.config.get(flag)]
    modes = modes or flagged or ["mean"]
    unknown = [str(mode) for mode in modes if mode not in MODES]
    if unknown:
        where = f"{step.folder.name}/config.json"
        raise LoadError(f"{where}: pooling_mode {unknown[0]}, known: {', '.join(MODES)}")
    return tuple(modes)


def _prompts(whole: Mapping[str, Any]) -> Mapping[str, str]:
    found = whole.get("prompts") or {}
    if not isinstance(found, dict) or not all(isinstance(one or "", str) for one in found.values()):
        raise LoadError(f"{WHOLE_FILE}: prompts: an object of texts was expected")
    name = whole.get("default_prompt_name")
    if name is not None and name not in found:
        known = ", ".join(found) or "none"
        raise LoadError(f"{WHOLE_FILE}: default_prompt_name {name} is unknown, known: {known}")
    return {name: text or "" for name, text in found.items()}


def _check_requirements(requirements: Mapping[str, Any]) -> None:
    """Raises LoadError where the model's author requires another version of a package."""
    from importlib.metadata import version

    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    for name, asked in requirements.items():
        wanted = asked.get("specifier") if isinstance(asked, dict) else asked
        package = _CHECKED_PACKAGES.get(name)
        if package is None or not isinstance(wanted, str):
            continue
        try:
            is_met = SpecifierSet(wanted).contains(version(package), prereleases=True)
        except InvalidSpecifier:
            continue  # as in sentence-transformers
        if not is_met:
            here = f"{package} {version(package)}"
            raise LoadError(f"{WHOLE_FILE}: requirements: {name} {wanted} is asked for, got {here}")


def _kwargs(
    where: str, config: Mapping[str, Any], old: str, new: str, table: Keys
) -> Mapping[str, Any]:
    """Reads arguments for transformers; the old name of the key wins, as it does there."""
    found = {name: _part(where, config, name, table) for name in (old, new)}
    passed = found[old] if old in config else found[new]
    return {name: value for name, value in passed.items() if name not in table.harmless}


def _part(
    where: str, config: Mapping[str, Any], key: str, table: Keys | None = None
) -> Mapping[str, Any]:
    """An object in a file; empty where there is none."""
    found = config.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise LoadError(f"{where}: {key}: an object was expected")
    if table is not None:
        table.check(f"{where}: {key}", found)
    return found


def _count(where: str, config: Mapping[str, Any], key: str) -> int | None:
    found: int | None = config.get(key)
    if found is not None and (type(found) is not int or found < 1):
        raise LoadError(f"{where}: {key}: got {found!r}, expected a whole number from 1")
    return found


def _object(files: Path, path: Path, table: Keys) -> Mapping[str, Any]:
    found = _read(path, {})
    if not isinstance(found, dict):
        raise LoadError(f"{path.name}: an object was expected")
    where = path.relative_to(files).as_posix()
    table.check(where, found)
    unread = sorted(found.keys() - {*table.followed, *table.harmless})
    if unread and table.others == "harmless":
        info(f"{where}: not read, as in sentence-transformers: {', '.join(unread)}")
    return found


def _read(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise LoadError(f"{path.parent.name}/{path.name}: can't be read: {error}") from error


def activation(key: str, name: str | None) -> Any:
    """The torch module of a dotted name such as ``torch.nn.modules.activation.Tanh``; ``key`` is
    the one that names it. Raises LoadError.
    """
    from torch import nn

    if name is None:
        return nn.Identity()
    package, _, last = str(name).rpartition(".")
    found = getattr(nn, last, None)
    known = package.split(".")[:2] == ["torch", "nn"]
    if not known or not isinstance(found, type) or not issubclass(found, nn.Module):
        raise LoadError(f"{key} {name} is not a module of torch.nn")
    try:
        return found().eval()
    except TypeError:
        raise LoadError(f"{key} {name} is not an activation: it needs sizes") from None
