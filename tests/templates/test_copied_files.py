"""What is copied beside each task's model.py, as Python's own modulefinder sees it: bytecode is
what it reads, so that it knows nothing of how generator/spec/reachable.py found the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from modulefinder import ModuleFinder
from pathlib import Path

import pytest

from generator.spec.task_folders import Task, find_tasks

TASKS = find_tasks()
FOLDERS = {
    **{tag: task.runtime_files for tag, task in TASKS.items()},
    **{f"{tag}'s front": task.front_files for tag, task in TASKS.items() if task.streams},
}
# Read by path, and compiled.
READ = {
    *("kernels.py", "state_kernels.py", "expert_kernels.py", "text_kernels.py"),
    *("tile_kernels.py", "tile_operations.py", "product_kernels.py", "vectors.py"),
    "run_kernels.py",
}


@pytest.fixture(params=list(FOLDERS.values()), ids=list(FOLDERS))
def files(request: pytest.FixtureRequest) -> Mapping[str, bytes]:
    found: Mapping[str, bytes] = request.param
    return found


def laid_out(files: Mapping[str, bytes], folder: Path) -> ModuleFinder:
    """The files in ``folder``, and what their imports lead to there."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    finder = ModuleFinder(path=[str(folder), str(folder / "1")])
    finder.import_hook("1.model")
    for path, content in files.items():
        if b'__name__ == "__main__"' in content:
            package, _, module = path.removeprefix("1/").removesuffix(".py").rpartition("/")
            finder.import_hook(f"{package.replace('/', '.')}.{module}")
    return finder


def test_every_import_of_ours_finds_its_module(files: Mapping[str, bytes], tmp_path: Path) -> None:
    finder = laid_out(files, tmp_path)
    ours = {"1", *(path.split("/")[1] for path in files if path.count("/") > 1)}
    missing, maybe = finder.any_missing_maybe()
    assert not [name for name in (*missing, *maybe) if name.split(".")[0] in ours]


def test_no_file_lies_there_that_nothing_imports(
    files: Mapping[str, bytes], tmp_path: Path
) -> None:
    finder = laid_out(files, tmp_path)
    places = (vars(module)["__file__"] for module in finder.modules.values())
    found = {Path(place) for place in places if place}
    idle = {path for path in files if tmp_path / path not in found}
    assert {Path(path).name for path in idle} <= READ


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_model_can_have_hooks(task: Task) -> None:
    assert "1/hf_runtime/hooks.py" in task.runtime_files


def test_a_front_is_small() -> None:
    assert len(TASKS["text-generation"].front_files) <= 22


def test_the_engines_of_an_encoder_can_be_compared() -> None:
    files = TASKS["feature-extraction"].runtime_files
    assert any(path.startswith("1/hf_encoder/optimize") for path in files)


def test_compiled_loops_come_with_their_source() -> None:
    found = {path.rpartition("/")[2] for path in TASKS["text-generation"].runtime_files}
    assert found >= READ
