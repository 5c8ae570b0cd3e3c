"""What sentence-transformers' own files in a model's folder say; reads JSON, no tensors.

modules.json lists the steps: a transformer, then Pooling, and perhaps Dense, LayerNorm, Normalize,
each with a config.json in a folder of its own. sentence_bert_config.json is the transformer's,
config_sentence_transformers.json has prompts. Both spellings of a pooling mode are read: one flag
for each (before 5.0), and the modes' names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.regular_file import read_json

# In the order in which several are put together.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODES = tuple(_FLAGS.values())
_TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_WHOLE = "config_sentence_transformers.json"
_POST_POOLING = ("Dense", "LayerNorm", "Normalize")
_IGNORED_STEPS = ("Dropout",)  # nothing outside of training


@dataclass(frozen=True)
class Step:
    """A module after pooling: ``kind`` is its class, ``folder`` holds its weights."""

    kind: str
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class SentenceFiles:
    """All that such files may say. ``pooling`` are modes whose vectors are put together; None
    where no file says anything, as for a plain transformer.
    """

    pooling: tuple[str, ...] | None = None
    include_prompt: bool = True
    steps: tuple[Step, ...] = ()
    max_seq_length: int | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    dimensions: int | None = None


def read_sentence_files(files: Path) -> SentenceFiles:
    """Reads what there is.

    Raises:
        LoadError: a file is broken, or asks for a module that is not known here.
    """
    listed = _read(files / "modules.json", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise LoadError("modules.json: a list of modules was expected")
    steps = [_step(files, module) for module in listed]
    pooling = next((step for step in steps if step.kind == "Pooling"), None)
    if listed and (steps[0].kind != "Transformer" or pooling is None):
        kinds = ", ".join(step.kind for step in steps)
        raise LoadError(f"modules.json: got {kinds}; a Transformer and a Pooling were expected")
    where, transformer = _transformer_config(steps[0].folder if steps else files)
    whole = _object(files / _WHOLE)
    prompts = _prompts(whole)
    return SentenceFiles(
        pooling=None if pooling is None else _modes(pooling),
        include_prompt=pooling is None or bool(pooling.config.get("include_prompt", True)),
        steps=tuple(step for step in steps if step.kind in _POST_POOLING),
        max_seq_length=_count(where, transformer, "max_seq_length"),
        do_lower_case=bool(transformer.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=_default_prompt(whole, prompts),
        dimensions=_count(_WHOLE, whole, "truncate_dim"),
    )


def _step(files: Path, module: Mapping[str, Any]) -> Step:
    path, kind = str(module.get("path") or ""), str(module.get("type") or "")
    package, _, name = kind.rpartition(".")
    known = ("Transformer", "Pooling", *_POST_POOLING, *_IGNORED_STEPS)
    if package.split(".")[0] != "sentence_transformers" or name not in known:
        allowed = ", ".join(known)
        raise LoadError(
            f"modules.json: {kind} is not served here; of sentence-transformers' own: {allowed}"
        )
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise LoadError(f"modules.json: path {path} leads out of the model's folder")
    config = {} if name == "Transformer" else _object(files / path / "config.json")
    step = Step(name, files / path, config)
    if name in _POST_POOLING:
        _check_tensor(step)
    return step


def _check_tensor(step: Step) -> None:
    """Raises LoadError where a step changes tokens, as multi-vector models' do."""
    for key in ("module_input_name", "module_output_name"):
        name = step.config.get(key) or "sentence_embedding"
        if name != "sentence_embedding":
            where = f"{step.folder.name}/config.json"
            raise LoadError(f"{where}: {key} is {name}; only sentence_embedding is served here")


def _modes(step: Step) -> tuple[str, ...]:
    named = step.config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or ())
    modes = modes or [mode for flag, mode in _FLAGS.items() if step.config.get(flag)] or ["mean"]
    unknown = [str(mode) for mode in modes if mode not in MODES]
    if unknown:
        where = f"{step.folder.name}/config.json"
        raise LoadError(f"{where}: pooling_mode {unknown[0]}, known: {', '.join(MODES)}")
    return tuple(modes)


def _transformer_config(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """The name of its file and what that has."""
    for name in _TRANSFORMER_FILES:
        found = _object(folder / name)
        if found:
            return name, found
    return "", {}


def _prompts(whole: Mapping[str, Any]) -> Mapping[str, str]:
    found = whole.get("prompts") or {}
    if not isinstance(found, dict) or not all(isinstance(one or "", str) for one in found.values()):
        raise LoadError(f"{_WHOLE}: prompts: an object of texts was expected")
    return {name: text or "" for name, text in found.items()}


def _default_prompt(whole: Mapping[str, Any], prompts: Mapping[str, str]) -> str | None:
    name: str | None = whole.get("default_prompt_name")
    if name is not None and name not in prompts:
        known = ", ".join(prompts) or "none"
        raise LoadError(f"{_WHOLE}: default_prompt_name {name} is no prompt, known: {known}")
    return name


def _count(where: str, config: Mapping[str, Any], key: str) -> int | None:
    """A number of tokens or dimensions; None where it is not given."""
    found: int | None = config.get(key)
    if found is not None and (type(found) is not int or found < 1):
        raise LoadError(f"{where}: {key}: got {found!r}, expected a whole number from 1")
    return found


def _object(path: Path) -> Mapping[str, Any]:
    found = _read(path, {})
    if not isinstance(found, dict):
        raise LoadError(f"{path.name}: an object was expected")
    return found


def _read(path: Path, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise LoadError(f"{path.parent.name}/{path.name}: can't be read: {error}") from error
