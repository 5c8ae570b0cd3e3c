"""Pruning removes what we made and models.yaml no longer names, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from generator.render.manifest import MANIFEST_FILE
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, snapshot

WITH_OLD = ONE_MODEL + ONE_MODEL.split("\n", 1)[1].replace("demo", "old")


@pytest.fixture
def old(work: Path, run: Run) -> Path:
    """The folder of a model that models.yaml named and no longer names."""
    (work / "models.yaml").write_text(WITH_OLD)
    run("generate")
    (work / "models.yaml").write_text(ONE_MODEL)
    return work / "model_repository/old"


def test_a_model_no_longer_named_is_removed(old: Path, run: Run) -> None:
    assert run("prune") == (0, "remove     model_repository/old (3 files)\n", "")
    assert not old.exists()
    assert (old.parent / "demo").exists()
    assert run("prune") == (0, "model_repository: nothing to prune\n", "")


def test_a_dry_run_removes_nothing(old: Path, run: Run) -> None:
    before = snapshot(old)
    assert run("prune", "--dry-run") == (0, "would remove model_repository/old (3 files)\n", "")
    assert snapshot(old) == before


def test_generate_and_diff_name_what_prune_would_remove(old: Path, run: Run) -> None:
    code, _, err = run("generate")
    message = "model_repository/old: is no longer in models.yaml; hf-triton prune removes it\n"
    assert (code, err) == (0, message)
    code, out, _ = run("diff")
    expected = "remove model_repository/old: no longer in models.yaml (hf-triton prune)\n"
    assert (code, out) == (1, expected)


def test_weights_stay_unless_asked_for(old: Path, run: Run) -> None:
    (old / "hf_cache/hub").mkdir(parents=True)
    (old / "hf_cache/hub/weights").write_text("w")
    _, _, err = run("prune")
    assert err == "kept       model_repository/old/hf_cache: weights; --weights removes them\n"
    assert sorted(snapshot(old)) == [MANIFEST_FILE, "hf_cache/hub/weights"]
    assert run("diff")[0] == 0
    assert run("prune") == (0, "model_repository: nothing to prune\n", "")
    assert "and its weights" in run("prune", "--weights")[1]
    assert not old.exists()


def test_weights_of_a_named_model_are_never_removed(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    run("generate")
    weights = work / "model_repository/demo/hf_cache/weights"
    weights.parent.mkdir()
    weights.write_text("w")
    assert run("prune", "--weights", "--force")[0] == 0
    assert weights.exists()


@pytest.mark.threat("repository-links")
def test_weights_that_are_a_link_lose_only_the_link(old: Path, run: Run) -> None:
    outside = old.parent.parent / "outside"
    outside.mkdir()
    (outside / "weights").write_text("w")
    (old / "hf_cache").symlink_to(outside)
    run("prune", "--weights")
    assert not old.exists()
    assert (outside / "weights").exists()


def test_an_edited_file_stays_unless_forced(old: Path, run: Run) -> None:
    (old / "1/model.py").write_text("mine")
    _, _, err = run("prune")
    assert err == "kept       model_repository/old/1/model.py: edited by hand\n"
    assert sorted(snapshot(old)) == [MANIFEST_FILE, "1/model.py"]
    assert run("prune", "--force")[0] == 0
    assert not old.exists()


def test_files_of_the_user_stay(old: Path, run: Run) -> None:
    (old / "notes.txt").write_text("mine")
    (old / "1/extra.py").write_text("mine")
    (old / "1/__pycache__").mkdir()
    for name in ("model", "extra"):
        (old / f"1/__pycache__/{name}.cpython-312.pyc").write_text("x")
    run("prune", "--weights", "--force")
    assert sorted(snapshot(old)) == [
        *("1/__pycache__/extra.cpython-312.pyc", "1/extra.py", "notes.txt"),
    ]


def test_folders_without_our_manifest_are_not_ours(work: Path, run: Run) -> None:
    theirs = work / "model_repository/resnet"
    theirs.mkdir(parents=True)
    (theirs / "config.pbtxt").write_text("")
    (work / "models.yaml").write_text(ONE_MODEL)
    run("generate")
    assert run("prune", "--weights", "--force")[1] == "model_repository: nothing to prune\n"
    assert theirs.exists()


def test_a_linked_folder_is_not_ours(old: Path, run: Run) -> None:
    elsewhere = old.parent.parent / "elsewhere"
    old.rename(elsewhere)
    old.symlink_to(elsewhere)
    assert run("prune")[1] == "model_repository: nothing to prune\n"
    assert (elsewhere / MANIFEST_FILE).exists()


def test_a_manifest_cannot_lead_outside(old: Path, run: Run) -> None:
    secret = old.parent.parent / "secret"
    secret.write_text("s")
    (old / MANIFEST_FILE).write_text('{"files": {"../../secret": "%s"}}' % ("0" * 64))
    code, _, err = run("prune", "--force")
    assert code == 1
    assert "is not a path inside the model's folder" in err
    assert secret.exists()


@pytest.mark.threat("repository-links")
def test_a_linked_parent_is_not_followed(old: Path, run: Run) -> None:
    """A manifest's path through a folder that has since become a link."""
    outside = old.parent.parent / "outside"
    (old / "1").rename(outside)
    (old / "1").symlink_to(outside)
    run("prune", "--force")
    assert (outside / "model.py").exists()


def test_a_repository_that_is_not_there_has_nothing_to_prune(work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    assert run("prune") == (0, "model_repository: nothing to prune\n", "")
    assert not (work / "model_repository").exists()
