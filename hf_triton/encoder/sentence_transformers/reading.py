"""Reads sentence-transformers' own JSON files in a model's folder.

modules.json lists the steps: a transformer, and of an embedder Pooling, and perhaps Dense,
LayerNorm, Normalize, each with a config.json in a folder of its own. keys.py says of every key what
becomes of it. Without modules.json the files say nothing, as in sentence-transformers itself.
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

MODES = tuple(POOLING_FLAGS.values())
# sentence-transformers' classes of models that are served.
Kind = Literal["SentenceTransformer", "CrossEncoder"]
# Each one's transformer_task, the output of its module, and the output of transformers' model.
_COMPUTED = {
    "SentenceTransformer": ("feature-extraction", "token_embeddings", "last_hidden_state"),
    "CrossEncoder": ("sequence-classification", "scores", "logits"),
}
_DECODER_TASKS = ("text-generation", "any-to-any")
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_CUTS = ("longest_first", "only_first", "only_second")
_CHECKED_PACKAGES = {"pytorch": "torch", **{n: n for n in ("torch", "transformers", "tokenizers")}}


@dataclass(frozen=True)
class Step:
    """A module: ``kind`` is its class, ``folder`` holds its weights."""

    kind: str
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class SentenceFiles:
    """``folder`` has the transformer's files. ``kind`` is None where sentence-transformers did not
    save the model. ``max_length`` replaces the tokenizer's own, ``cuts`` says which text of a pair
    is shortened. ``pooling`` are modes whose vectors are concatenated; None where no file says
    anything.
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


def read_sentence_files(files: Path, kind: Kind | None) -> SentenceFiles:
    """Reads what there is for a model of this kind; None for tasks that sentence-transformers has
    no models for. Raises LoadError.
    """
    listed = _read(files / MODULES_FILE, [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise LoadError(f"{MODULES_FILE}: a list of modules was expected")
    if not listed:
        return SentenceFiles(files)
    if kind is None:
        return SentenceFiles(_folder(files, listed[0]))
    whole = _object(files, files / WHOLE_FILE, keys.WHOLE)
    saved = whole.get("model_type", "SentenceTransformer")
    if kind == "CrossEncoder" and saved == "SentenceTransformer":
        return SentenceFiles(_folder(files, listed[0]))
    if saved != kind:
        raise LoadError(f"{WHOLE_FILE}: model_type: got {saved}, this task serves {kind}")
    _check_requirements(_part(WHOLE_FILE, whole, "requirements"))
    steps = [_step(files, module) for module in listed]
    transformer, pooling = _transformer_and_pooling(steps, kind)
    configs = (
        (n, _object(files, transformer.folder / n, keys.TRANSFORMER)) for n in TRANSFORMER_FILES
    )
    where, config = next((found for found in configs if found[1]), ("", {}))
    _check_output(where, config, kind)
    _kwargs(where, config, "model_args", "model_kwargs", keys.MODEL_KWARGS)  # none changes answers
    tokenizer = _kwargs(where, config, "tokenizer_args", "processor_kwargs", keys.PROCESSOR_KWARGS)
    processing = _part(where, config, "processing_kwargs", keys.PROCESSING)
    called, given = f"{where}: processing_kwargs", dict[str, Any]()
    for name in ("text", "common"):
        given |= _part(called, processing, name, keys.TEXT)
    prompts, similarity = _prompts(whole), whole.get("similarity_fn_name")
    return SentenceFiles(
        transformer.folder,
        kind,
        _count(called, given, "max_length")
        or _count(where, tokenizer, "model_max_length")
        or _count(where, config, "max_seq_length"),
        _cuts(called, given.get("truncation")),
        bool(given.get("add_special_tokens", True)),
        bool(config.get("do_lower_case", False)),
        config_kwargs=_kwargs(where, config, "config_args", "config_kwargs", keys.CONFIG_KWARGS),
        processor_kwargs=tokenizer,
        pooling=None if pooling is None else _modes(pooling),
        include_prompt=pooling is None or bool(pooling.config.get("include_prompt", True)),
        steps=tuple(step for step in steps if step.kind in keys.POST_POOLING),
        prompts=prompts,
        default_prompt_name=whole.get("default_prompt_name"),
        dimensions=_count(WHOLE_FILE, whole, "truncate_dim"),
        # Another name is left out, as in sentence-transformers.
        similarity=similarity if similarity in SIMILARITIES else SIMILARITIES[0],
        activation_fn=whole.get("activation_fn"),
    )


def _step(files: Path, module: Mapping[str, Any]) -> Step:
    kind = str(module.get("type") or "")
    package, _, name = kind.rpartition(".")
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
    tables = {keys.POOLING_MODULE: keys.POOLING, **keys.POST_POOLING, **keys.TRAINING_MODULES}
    config = _object(files, folder / "config.json", tables[name])
    # A step that changes tokens, as multi-vector models' do, or makes scores.
    for key in ("module_input_name", "module_output_name") if name in keys.POST_POOLING else ():
        tensor = config.get(key) or "sentence_embedding"
        if tensor != "sentence_embedding":
            where = f"{folder.name}/config.json"
            raise LoadError(f"{where}: {key} is {tensor}; only sentence_embedding is served here")
    return Step(name, folder, config)


def _folder(files: Path, module: Mapping[str, Any]) -> Path:
    path = PurePosixPath(str(module.get("path") or ""))
    if path.is_absolute() or ".." in path.parts:
        raise LoadError(f"{MODULES_FILE}: path {path} leads out of the model's folder")
    return files / path


def _transformer_and_pooling(steps: Sequence[Step], kind: Kind) -> tuple[Step, Step | None]:
    computing = [step for step in steps if step.kind not in keys.TRAINING_MODULES]
    kinds = [step.kind for step in computing]
    if kind == "CrossEncoder":
        if kinds == [keys.TRANSFORMER_MODULE]:
            return computing[0], None
        expected = "a Transformer alone was"
    else:
        expected = "a Transformer and a Pooling were"
        first = [keys.TRANSFORMER_MODULE, keys.POOLING_MODULE]
        if kinds[:2] == first and not {*first} & {*kinds[2:]}:
            return computing[0], computing[1]
    raise LoadError(f"{MODULES_FILE}: got {', '.join(kinds)}; {expected} expected")


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
