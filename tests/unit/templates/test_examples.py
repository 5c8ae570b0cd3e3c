"""The YAMLs that are shipped are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.models_yaml.reading import load, load_settings
from generator.render.model_folder import render
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_right(path: Path) -> None:
    tasks = find_tasks()
    for spec in load(path):
        for model in triton_models(spec):
            assert render(model, tasks[spec.task], ROOT / "model_repository")
        assert not spec.trust_remote_code
        assert not spec.source.is_local or is_of_the_demo(spec.source.folder)


def is_of_the_demo(folder: Path | None) -> bool:
    return folder is not None and folder.resolve().parent == ROOT / "demo"


def test_one_example_has_a_model_of_every_task() -> None:
    tasks = find_tasks()
    served = [spec.task for spec in load(ROOT / "examples/every-task.yaml")]
    assert sorted(served) == sorted(tasks)


def test_the_default_file_serves_the_demo_model() -> None:
    [spec] = load(ROOT / "models.yaml")
    assert (spec.name, spec.source.folder) == ("demo", ROOT / "demo/model")


TOP_LEVEL = ("# dtype", "# defaults:", "#   dtype", "# server:", "#   tracing:")


def test_every_key_that_the_default_file_explains_is_right(tmp_path: Path) -> None:
    """The commented-out keys of models.yaml, uncommented."""
    lines = (ROOT / "models.yaml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(uncommented(line) for line in lines)
    text = text.replace("./demo/model", "org/name").replace("device_map: auto", "device_map: null")
    text = text.replace("max_batch_size: 0", "max_batch_size: 8")
    (tmp_path / "my_hooks.py").write_text("def preprocess(request): pass\n")
    (tmp_path / "needs.txt").write_text("einops\n")
    (tmp_path / "models.yaml").write_text(text)
    specs = load(tmp_path / "models.yaml")
    assert [spec.name for spec in specs] == ["demo", "demo_new"]
    assert specs[0].max_batch_size == 8
    settings = load_settings(tmp_path / "models.yaml")
    assert settings.tracing is not None


def uncommented(line: str) -> str:
    """``    # dtype: auto`` -> ``    dtype: auto``; prose stays a comment."""
    indent = len(line) - len(line.lstrip())
    body = line.lstrip()
    if body.startswith(TOP_LEVEL) or (indent == 4 and body[0] == "#"):
        return " " * indent + body[2:] if not body.startswith("#    ") else ""
    return line
