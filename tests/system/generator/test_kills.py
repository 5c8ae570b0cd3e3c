"""Killed at any of its writes, ``generate`` leaves the old files or the new, and the next run ends
what it began.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from generator.repository import compare, version_folders
from generator.repository.compare import folder_version, read_manifest
from hf_triton.cli import main as cli
from tests.system.generator.killing import is_killed
from tests.unit.generator.conftest import Run, run, work
from tests.unit.generator.test_versions import HALF, WHOLE, add, folder, say
from tests.unit.generator.workspace import ONE_MODEL, snapshot

__all__ = ["folder", "run", "work"]  # fixtures


def served(folder: Path, version: int) -> dict[str, bytes]:
    """The files of a version that Triton reads."""
    return {
        path: content
        for path, content in snapshot(folder).items()
        if path == "config.pbtxt" or path.startswith(f"{version}/")
    }


@pytest.mark.parametrize("start", ["nothing", "older"])
def test_a_killed_run_leaves_the_old_files_or_the_new(start: str, work: Path, run: Run) -> None:
    folder, num_writes, killed = work / "model_repository/demo", 0, True

    def version() -> dict[str, bytes]:
        return {path: text for path, text in snapshot(folder).items() if path.startswith("1/")}

    (work / "mine.py").write_text("def preprocess(request): pass\n")
    changed = ONE_MODEL.replace("org/name", "org/new") + "    hooks: mine.py\n"
    (work / "models.yaml").write_text(changed)
    run("generate")
    new = version()
    while killed:
        shutil.rmtree(work / "model_repository")
        (work / "models.yaml").write_text(ONE_MODEL)
        if start == "older":
            run("generate")
        old = version() if folder.exists() else {}
        (work / "models.yaml").write_text(changed)
        killed = is_killed(lambda: cli.main(["generate"]), num_writes)
        assert not folder.exists() or version() in (old, new)
        # The next run is of a version that is newer still: old and new are ours.
        (work / "models.yaml").write_text(ONE_MODEL.replace("org/name", "org/newer"))
        assert run("generate")[::2] == (0, "")
        assert run("diff")[0] == 0
        assert not list(work.rglob(f"*{compare.TEMPORARY_SUFFIX}"))
        num_writes += 1
    assert num_writes > 8


def assert_a_version_is_whole(folder: Path, wholes: list[dict[str, bytes]]) -> None:
    """Triton, started now, would find the highest version whole, and either's config."""
    number = version_folders.next_version(folder) - 1
    files = served(folder, number)
    config = files.pop("config.pbtxt")
    assert config in [whole["config.pbtxt"] for whole in wholes]
    code = {path.partition("/")[2]: content for path, content in files.items()}
    code.pop("config.pbtxt", None)
    assert code in [
        {path[2:]: content for path, content in whole.items() if path != "config.pbtxt"}
        for whole in wholes
    ]


@pytest.mark.parametrize("next_says", [WHOLE, HALF], ids=["undone", "finished"])
def test_killed_while_a_version_is_added_the_next_run_ends_it(
    work: Path, folder: Path, run: Run, next_says: str
) -> None:
    wholes = [served(folder, 1)]
    num_writes = 0
    while is_killed(lambda: add(work, HALF, 2), num_writes):
        assert_a_version_is_whole(folder, [*wholes, _as_half(wholes[0], folder)])
        say(work, next_says)
        assert run("generate")[0] == 0
        assert run("diff")[0] == 0
        if folder_version(folder) == 2:
            version_folders.drop_version(folder)
        say(work, WHOLE)
        run("generate")
        assert run("diff") == (0, "model_repository: 1 identical\n", "")
        assert not [path for path in folder.rglob("*") if path.name.endswith("tmp")]
        assert not list(folder.glob("?/config.pbtxt"))
        num_writes += 1
    assert num_writes > 10


def _as_half(whole: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """The same model in half precision, whose config the folder may have already."""
    json = whole["1/model.json"].replace(b"float32", b"float16")
    return {**whole, "1/model.json": json, "config.pbtxt": served(folder, 1)["config.pbtxt"]}


def test_killed_while_a_version_is_dropped_the_next_run_ends_it(
    work: Path, folder: Path, run: Run
) -> None:
    before = snapshot(folder)
    add(work, HALF, 2)
    num_writes = 0
    while is_killed(lambda: version_folders.drop_version(folder), num_writes):
        version_folders.drop_last_version(folder, 2)
        say(work, WHOLE)
        assert run("generate")[0] == 0
        assert snapshot(folder) == before
        add(work, HALF, 2)
        num_writes += 1
    assert num_writes > 10
    assert read_manifest(folder).keys() == {path for path in snapshot(folder) if path[0] != "."}
