"""A version beside another, and back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from generator.repository import version_folders
from generator.repository.compare import ModelPlan
from generator.repository.plan import make_plan
from generator.spec.triton_models import LAUNCHER_FILE
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, snapshot

WHOLE, HALF = "dtype: float32", "dtype: float16"


def say(work: Path, dtype: str) -> None:
    (work / "models.yaml").write_text(f"{ONE_MODEL}    {dtype}\n")


def plan_of(work: Path) -> ModelPlan:
    return make_plan(work / "models.yaml", work / "model_repository").models[0]


@pytest.fixture
def folder(work: Path, run: Run) -> Path:
    say(work, WHOLE)
    run("generate")
    return work / "model_repository" / "demo"


def add(work: Path, dtype: str, number: int, *keep: int) -> None:
    say(work, dtype)
    version_folders.add_version(plan_of(work), number, keep)


def test_dropping_a_version_leaves_what_was_before_byte_for_byte(work: Path, folder: Path) -> None:
    before = snapshot(folder)
    add(work, HALF, 2)
    version_folders.drop_version(folder)
    assert snapshot(folder) == before


def test_files_of_the_user_come_along_and_go_with_the_last_version(
    work: Path, folder: Path
) -> None:
    (folder / "1" / "words").mkdir()
    (folder / "1" / "words" / "list.txt").write_text("mine")
    (folder / "1" / "link").symlink_to("words/list.txt")
    (folder / "1" / "__pycache__").mkdir()
    (folder / "1" / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"x")
    add(work, HALF, 2)
    assert (folder / "2" / "link").read_text() == "mine"
    assert not (folder / "2" / "__pycache__").exists()
    assert (folder / "2/words/list.txt").samefile(folder / "1/words/list.txt")
    add(work, WHOLE, 3)
    assert (folder / "3/words/list.txt").read_text() == "mine"
    assert not (folder / "1" / "words" / "list.txt").exists()


def test_a_number_is_above_every_folder_whoever_made_it(folder: Path) -> None:
    assert version_folders.next_version(folder) == 2
    (folder / "7").mkdir()
    (folder / "09").mkdir()
    assert version_folders.next_version(folder) == 8
    assert version_folders.next_version(folder / "nothing") == 1


def test_what_starts_an_environment_is_there_while_a_version_has_one(
    work: Path, folder: Path, run: Run
) -> None:
    (work / "needs.txt").write_text("tiny\n")
    launcher, with_environment = folder / LAUNCHER_FILE, f"{WHOLE}\n    python_env: needs.txt"
    add(work, with_environment, 2)
    assert os.access(launcher, os.X_OK)
    add(work, WHOLE, 3)
    assert launcher.exists()
    assert run("diff")[0] == 0
    add(work, HALF, 4)
    assert not launcher.exists()
    assert run("diff")[0] == 0


def test_routing_that_the_old_version_reads_is_not_written(work: Path, folder: Path) -> None:
    (folder / "routing.json").write_text("{}")
    add(work, HALF, 2)
    assert (folder / "routing.json").read_text() == "{}"
