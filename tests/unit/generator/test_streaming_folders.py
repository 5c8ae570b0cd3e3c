"""A model that streams is two folders: written, shown, kept and removed together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_STREAMING_MODEL, snapshot

QUIET = ONE_STREAMING_MODEL + "    streaming: false\n"


@pytest.fixture
def made(work: Path, run: Run) -> Path:
    """A repository with ``demo`` and ``demo_stream``, just generated."""
    (work / "models.yaml").write_text(ONE_STREAMING_MODEL)
    assert run("generate")[0] == 0
    return work / "model_repository"


def test_both_folders_are_created_and_then_left_alone(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_STREAMING_MODEL)
    code, out, _ = run("diff")
    assert code == 1
    assert "+++ b/demo/config.pbtxt" in out
    assert "+++ b/demo_stream/config.pbtxt" in out
    assert run("generate")[1].splitlines() == [
        "create     demo (3 files)",
        "create     demo_stream (3 files)",
        "model_repository: 2 written, 0 identical",
    ]
    assert run("generate") == (0, "model_repository: 0 written, 2 identical\n", "")
    assert run("diff") == (0, "model_repository: 2 identical\n", "")
    assert run("prune") == (0, "model_repository: nothing to prune\n", "")


def test_a_change_of_the_engine_alone_leaves_the_front_alone(
    made: Path, work: Path, run: Run
) -> None:
    (work / "models.yaml").write_text(ONE_STREAMING_MODEL + "    dtype: float16\n")
    written = "update     demo_stream: 1/model.json, config.pbtxt"
    summary = "model_repository: 1 written, 1 identical"
    assert run("generate") == (0, f"{written}\n{summary}\n", "")


@pytest.mark.parametrize("edited", ["demo", "demo_stream"])
def test_a_conflict_in_one_folder_keeps_the_other_as_it_is(
    edited: str, made: Path, work: Path, run: Run
) -> None:
    (made / edited / "config.pbtxt").write_text("mine\n")
    before = snapshot(made)
    two_models = ONE_STREAMING_MODEL + "  - {name: other, task: fake-task, model: org/name}\n"
    (work / "models.yaml").write_text("defaults: {max_batch_size: 8}\n" + two_models)
    code, out, err = run("generate")
    assert code == 1
    assert out.splitlines()[0] == "create     other (3 files)"
    assert err == (
        f"hf-triton: conflict: model_repository/{edited}/config.pbtxt: edited by hand\n"
        "nothing was written for these models: move your edits away, or use --force\n"
    )
    assert {path: text for path, text in snapshot(made).items() if path in before} == before
    assert run("generate", "--force")[0] == 0
    assert run("diff")[0] == 0


def test_a_model_that_no_longer_streams_leaves_an_engine_to_prune(
    made: Path, work: Path, run: Run
) -> None:
    (made / "demo_stream/hf_cache").mkdir()
    (work / "models.yaml").write_text(QUIET)
    code, _, err = run("generate")
    message = "model_repository/demo_stream: is no longer in models.yaml; hf-triton prune removes"
    assert (code, err) == (0, f"{message} it\n")
    assert json.loads((made / "demo/1/model.json").read_text())["decoupled"] is False
    assert run("diff")[0] == 1
    assert run("prune", "--weights")[0] == 0
    assert not (made / "demo_stream").exists()
    assert run("diff")[0] == 0
