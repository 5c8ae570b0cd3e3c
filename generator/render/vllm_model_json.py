"""``1/model.json`` of a model on NVIDIA's vLLM backend: the arguments of its AsyncLLMEngine.

https://github.com/triton-inference-server/vllm_backend. The backend knows no folder of ours, so
paths in it start where tritonserver does: in the model repository, as ``serve`` starts it. Of files
it looks only whether weights are there, and what a config.pbtxt of ours names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec import vllm_arguments
from generator.spec.model_spec import ModelSpec
from generator.spec.runtime_rules import is_stored, snapshot_folder

LAYOUT = "vllm-backend"
_BACKEND = b'\nbackend: "vllm"\n'


def engine_arguments(spec: ModelSpec, repository: Path) -> dict[str, object]:
    """The content of model.json; the backend takes no other keys."""
    found: dict[str, object] = {"dtype": spec.dtype, **_source(spec, repository)}
    if spec.trust_remote_code:
        found["trust_remote_code"] = True
    if not spec.allow_pickle:
        found["load_format"] = "safetensors"
    return {**found, **vllm_arguments.arguments(spec.options)}


def is_used_in(repository: Path) -> bool:
    """Whether a generated model is of this layout."""
    configs = repository.glob("*/config.pbtxt")
    return any(_BACKEND in config.read_bytes() for config in configs if config.is_file())


def missing_weights(specs: Iterable[ModelSpec], repository: Path) -> Iterator[str]:
    """One line on each model of this layout whose weights are not where model.json says."""
    for spec in specs:
        if spec.layout != LAYOUT or spec.source.is_local:
            continue
        fetch = f"hf-triton fetch {spec.name}"
        if spec.locked is None:
            told = "vLLM downloads it when it loads, into a cache of its own"
            if is_stored(spec.source.text):
                told = "vLLM can't load it"
            yield f"{spec.name}: is not in models.lock, so {told}; {fetch} has it here ahead"
        elif not (repository / _snapshot(spec, spec.locked.commit)).is_dir():
            yield f"{spec.name}: its weights are not here yet; {fetch} brings them"


def _source(spec: ModelSpec, repository: Path) -> dict[str, object]:
    """A folder below the repository, one beside it, or a model on the Hub."""
    if spec.source.folder is not None:
        path = Path(spec.source.text)
        if not path.is_absolute():
            path = Path(os.path.relpath(spec.source.folder, repository.resolve()))
        return {"model": path.as_posix()}
    if spec.locked is not None:
        return {"model": _snapshot(spec, spec.locked.commit).as_posix()}
    revision = {} if spec.revision is None else {"revision": spec.revision}
    return {"model": spec.source.text, **revision}


def _snapshot(spec: ModelSpec, commit: str) -> Path:
    """The folder in which ``fetch`` puts a commit's files, relative to the repository."""
    return snapshot_folder(Path(spec.name, WEIGHTS_FOLDER), spec.source.text, commit)
