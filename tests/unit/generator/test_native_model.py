"""An ensemble's model step that runs without Python gets its file from an export."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL

NATIVE = ONE_MODEL + "    layout: ensemble\n    ensemble: {backend: onnxruntime}\n"
TARGET = "model_repository/demo_model/1/model.onnx"


@pytest.fixture
def home(work: Path) -> Path:
    """The folder of exports; models.yaml has a model that needs one."""
    (work / "models.yaml").write_text(NATIVE)
    folder = work / "model_repository/demo/hf_cache/onnx"
    folder.mkdir(parents=True)
    return folder


def export(home: Path, name: str, content: str, age_s: int = 0) -> Path:
    folder = home / name
    folder.mkdir()
    (folder / "model.onnx").write_text(content)
    (folder / "model.onnx.data").write_text(f"weights of {content}")
    written_s = (folder / "model.onnx").stat().st_mtime - age_s
    os.utime(folder / "model.onnx", (written_s, written_s))
    return folder


def test_the_newest_export_is_put_in_its_place_with_its_weights(home: Path, run: Run) -> None:
    export(home, "sequences-float32-none-1", "old", age_s=60)
    newest = export(home, "sequences-float32-none-2", "new")
    export(home, "sequences-float16-none-3", "wrong type")
    export(home, "sequences-float32-int8-4", "not asked for")
    code, _, err = run("generate")
    place = newest.relative_to(Path.cwd())
    assert (code, err) == (0, f"{TARGET}: taken from {place}\n")
    assert Path(TARGET).read_text() == "new"
    assert Path(f"{TARGET}.data").read_text() == "weights of new"
    assert run("generate") == (0, "model_repository: 0 written, 4 identical\n", "")


def test_a_file_that_is_there_stays(home: Path, run: Run) -> None:
    run("generate")
    Path(TARGET).write_text("mine")
    export(home, "sequences-float32-none-1", "theirs")
    assert run("generate")[2] == ""
    assert Path(TARGET).read_text() == "mine"
    assert not Path(f"{TARGET}.data").exists()


@pytest.mark.parametrize(
    "backend, message",
    [
        (
            "onnxruntime",
            "model.onnx: is missing; hf-triton optimize demo --engines onnxruntime makes",
        ),
        ("tensorrt", "model.plan: is missing; make it with trtexec"),
    ],
)
def test_a_missing_file_is_told_of_and_how_to_make_it(
    backend: str, message: str, home: Path, work: Path, run: Run
) -> None:
    (work / "models.yaml").write_text(NATIVE.replace("onnxruntime", backend))
    code, _, err = run("generate")
    assert code == 0
    assert err.startswith(f"model_repository/demo_model/1/{message}")


def test_an_export_is_copied_where_it_can_not_be_linked(
    home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:  # as between two file systems
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    export(home, "sequences-float32-none-1", "new")
    assert run("generate")[0] == 0
    assert Path(TARGET).read_text() == "new"
