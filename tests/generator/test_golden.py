"""The whole generated tree, byte for byte, of the YAMLs in golden/.

Regenerate with ``python -m tests.generator.regenerate``. Python files are copies, so
golden/ holds only what is rendered, each tree in one text.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from generator.render.manifest import MANIFEST_FILE
from generator.spec.task_folders import find_tasks
from tests.generator.conftest import Run
from tests.generator.regenerate import rendered_case, rendered_task
from tests.generator.workspace import GOLDEN, GOLDEN_TASKS, REAL_TEMPLATES, golden_cases, snapshot
from tests.support.text_sections import read_tree

TASKS = find_tasks()


@pytest.mark.parametrize("case", golden_cases())
def test_the_tree_is_the_golden_one(case: str, work: Path) -> None:
    assert rendered_case(case, work) == read_tree(GOLDEN / f"{case}.txt")


@pytest.mark.parametrize("case", golden_cases())
def test_code_is_copied_byte_for_byte_and_never_bytecode(case: str, work: Path, run: Run) -> None:
    templates = work.parent / "templates"
    for source in (templates / "fake_task", templates / "front"):
        (source / "__pycache__").mkdir(exist_ok=True)
        (source / "__pycache__/old.cpython-310.pyc").write_bytes(b"x")
        (source / ".hidden.py").write_bytes(b"x")
    shutil.copytree(GOLDEN, work / "golden")
    run("generate", "--config", f"golden/{case}.yaml", "--repository", "out")
    for folder in (work / "out").iterdir():
        made = {path: text for path, text in snapshot(folder).items() if path.endswith(".py")}
        values = json.loads((folder / "1/model.json").read_text())
        if "steps" in values or "file" in values or case == "vllm_backend":
            assert not made  # an ensemble, a step on one of Triton's own backends, NVIDIA's vLLM
            continue
        task = "front" if "engine" in values else values["task"].replace("-", "_")
        if "hooks" in values:
            hooks = (GOLDEN / values["hooks"]).read_bytes()
            assert made.pop("1/hooks.py") == hooks
        if "1/task_model.py" in made:  # it has a Python environment of its own
            own = REAL_TEMPLATES / "python_env"
            assert made.pop("1/model.py") == (own / "model.py").read_bytes()
            found = "find_environment.py"
            assert made.pop(f"1/python_env/{found}") == (own / found).read_bytes()
            made["1/model.py"] = made.pop("1/task_model.py")
        assert made == {
            **snapshot_of_sources(templates / task, "1"),
            **snapshot_of_sources(templates / "hf_runtime", "1/hf_runtime"),
        }


@pytest.mark.parametrize("case", golden_cases())
def test_the_manifest_lists_every_other_file_with_its_hash(case: str, work: Path, run: Run) -> None:
    shutil.copytree(GOLDEN, work / "golden")
    run("generate", "--config", f"golden/{case}.yaml", "--repository", "out")
    for folder in (work / "out").iterdir():
        files = snapshot(folder)
        written = files.pop(MANIFEST_FILE).decode()
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        assert written == json.dumps({"files": hashes}, indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize("tag", TASKS)
def test_a_tasks_config_and_values_are_the_golden_ones(tag: str) -> None:
    golden = read_tree(GOLDEN_TASKS / f"{TASKS[tag].folder.name}.txt")
    assert rendered_task(TASKS[tag]) == golden


def snapshot_of_sources(folder: Path, target: str) -> dict[str, bytes]:
    return {f"{target}/{path.name}": path.read_bytes() for path in sorted(folder.glob("[!.]*.py"))}
