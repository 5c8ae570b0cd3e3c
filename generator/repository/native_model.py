"""The file of a model step on one of Triton's own backends, such as ``<name>_model/1/model.onnx``:
takes an export from the model's cache; never touches a file that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from generator.render.manifest import WEIGHTS_FOLDER
from generator.render.model_data import NATIVE_FILES
from generator.repository.compare import folder_version, readable_errors
from generator.repository.staging import link_or_copy
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import Task, find_tasks
from generator.spec.triton_models import step_name


def place_models(specs: Iterable[ModelSpec], repository: Path) -> Iterator[str]:
    """Puts exports in their place; a line for each, and for each model without a file."""
    for spec in specs:
        if spec.ensemble is not None and spec.ensemble.is_native:
            folder = repository / step_name(spec.name, "model")
            file = NATIVE_FILES[spec.ensemble.backend]
            target = folder / str(folder_version(folder)) / file
            if not target.exists():
                yield _place(spec, find_tasks()[spec.task], repository, target)


def _place(spec: ModelSpec, task: Task, repository: Path, target: Path) -> str:
    home = repository / spec.name / WEIGHTS_FOLDER / "onnx"
    kind = f"{task.output}-float32-{spec.options.get('quantization', 'none')}-*"
    found = home.glob(f"{kind}/{NATIVE_FILES['onnxruntime']}")
    exports = [file.parent for file in sorted(found, key=lambda file: file.stat().st_mtime)]
    if target.name != NATIVE_FILES["onnxruntime"]:
        return f"{target}: is missing; make it with trtexec, see docs/encoders.md"
    if not exports:
        return (
            f"{target}: is missing; hf-triton optimize {spec.name} --engines onnxruntime makes it, "
            "or put an export of your own there"
        )
    with readable_errors():
        for file in sorted(exports[-1].iterdir(), key=lambda file: file.name == target.name):
            target.with_name(file.name).unlink(missing_ok=True)
            link_or_copy(file, target.with_name(file.name))  # the model itself last
    return f"{target}: taken from {exports[-1]}"
