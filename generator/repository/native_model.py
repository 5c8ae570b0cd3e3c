"""The file of a model step on one of Triton's own backends, such as ``<name>_model/1/model.onnx``.

Takes an export that lies in the model's cache; makes none, and never touches a file that is there.
Knows the cache's names (hf_triton/encoder/onnx/files.py) and no format.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from generator.render.ensemble_tensors import NATIVE_FILES
from generator.render.manifest import WEIGHTS_FOLDER
from generator.repository.compare import folder_version, readable_errors
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task
from generator.spec.triton_models import step_name


def place_models(
    specs: Iterable[ModelSpec], tasks: Mapping[str, Task], repository: Path
) -> Iterator[str]:
    """Puts exports in their place; a line for each, and for each model without a file."""
    for spec in specs:
        if spec.ensemble is not None and spec.ensemble.is_native:
            target = model_file(spec, repository)
            if not target.exists():
                yield _place(spec, tasks[spec.task], repository, target)


def model_file(spec: ModelSpec, repository: Path) -> Path:
    """The path at which Triton looks for the file."""
    backend = spec.ensemble.backend if spec.ensemble else ""
    folder = repository / step_name(spec.name, "model")
    return folder / str(folder_version(folder)) / NATIVE_FILES[backend]


def _place(spec: ModelSpec, task: Task, repository: Path, target: Path) -> str:
    exports = _exports(spec, task, repository)
    if target.name != NATIVE_FILES["onnxruntime"]:
        return f"{target}: is missing; make it with trtexec, see docs/encoders.md"
    if not exports:
        return (
            f"{target}: is missing; hf-triton optimize {spec.name} --engines onnxruntime makes it, "
            "or put an export of your own there"
        )
    with readable_errors():
        _link_all(exports[-1], target)
    return f"{target}: taken from {exports[-1]}"


def _link_all(export: Path, target: Path) -> None:
    for file in sorted(export.iterdir(), key=lambda file: file.name == target.name):
        _link(file, target.with_name(file.name))  # the model itself last


def _exports(spec: ModelSpec, task: Task, repository: Path) -> list[Path]:
    """The folders with exports in float32, the newest last."""
    home = repository / spec.name / WEIGHTS_FOLDER / "onnx"
    kind = f"{task.output}-float32-{spec.options.get('quantization', 'none')}-*"
    found = home.glob(f"{kind}/{NATIVE_FILES['onnxruntime']}")
    return [file.parent for file in sorted(found, key=lambda file: file.stat().st_mtime)]


def _link(source: Path, target: Path) -> None:
    """A hard link: weights are large. Where that can't be, a copy."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
