"""A folder's versions: one beside another, and back; what is rendered goes into the current one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from generator.render.manifest import (
    MANIFEST_FILE,
    digest,
    digest_in,
    digest_of_served,
    to_bytes,
    with_digest,
)
from generator.render.manifest import parameter_line as line
from generator.repository import version_folders
from generator.repository.compare import ModelPlan, folder_version
from generator.repository.plan import make_plan
from generator.repository.versions import (
    current_version,
    served_by,
    version_of,
)
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


RENDERED = {"config.pbtxt": b'name: "m"\n', "1/model.py": b"code"}


def renumber(folder: Path, version: int) -> None:
    """Makes version 1 of a generated folder ``version``, as after so many changes."""
    (folder / "1").rename(folder / str(version))
    files = snapshot(folder)
    del files[MANIFEST_FILE]
    hashes = {path: digest(content) for path, content in files.items()}
    (folder / MANIFEST_FILE).write_bytes(to_bytes(hashes))


@pytest.mark.parametrize(
    "path, version",
    [("1/model.py", 1), ("12/a/b.py", 12), ("config.pbtxt", None), ("01/x", None), ("3", None)],
)
def test_a_version_is_what_triton_takes_for_one(path: str, version: int | None) -> None:
    assert version_of(path) == version


def test_adapters_that_are_read_while_serving_are_not_in_the_digest() -> None:
    def digest_of(names: str, adapters: str = "1/adapters.json") -> str:
        added = line("hf_triton_adapters", f'"{names}"').encode()
        config = RENDERED["config.pbtxt"] + b"\n" + added
        files = {**RENDERED, "config.pbtxt": config, adapters: names.encode()}
        return digest_in(with_digest(files)["config.pbtxt"])

    assert digest_of("a,b") == digest_of("c") != digest_in(with_digest(RENDERED)["config.pbtxt"])
    assert digest_of("a,b", "1/model.json") != digest_of("c", "1/model.json")


def test_a_config_without_a_digest_has_none() -> None:
    assert digest_in(b'name: "m"') == digest_of_served(None) == digest_of_served({}) == ""
    served = {"parameters": {"hf_triton_digest": {"string_value": "ab"}}}
    assert digest_of_served(served) == "ab"


def test_generating_again_writes_into_the_current_version(folder: Path, run: Run) -> None:
    renumber(folder, 4)
    assert run("diff")[0] == 0
    (folder.parents[1] / "models.yaml").write_text(ONE_MODEL + "    dtype: float16\n")
    code, out, _ = run("diff")
    assert code == 1
    assert "+++ b/demo/4/model.json" in out
    run("generate")
    assert b"float16" in (folder / "4" / "model.json").read_bytes()
    assert not (folder / "1").exists()
    assert folder_version(folder) == 4
    assert run("diff")[0] == 0


def test_pruning_takes_every_version(folder: Path, run: Run) -> None:
    renumber(folder, 7)
    (folder.parents[1] / "models.yaml").write_text(ONE_MODEL.replace("demo", "other"))
    run("prune")
    assert not folder.exists()


@pytest.mark.parametrize(
    "policy, versions",
    [
        ("", {3}),
        ("    version_policy: {latest: {num_versions: 2}}\n", {2, 3}),
        ("    version_policy: {all: {}}\n", {1, 2, 3}),
    ],
)
def test_what_a_rendered_policy_serves(
    work: Path, run: Run, policy: str, versions: set[int]
) -> None:
    (work / "models.yaml").write_text(ONE_MODEL + policy)
    assert run("generate")[0] == 0
    config = (work / "model_repository/demo/config.pbtxt").read_bytes()
    assert served_by(config, [1, 2, 3]) == versions


def test_the_current_version_is_the_highest_and_1_at_first() -> None:
    assert current_version([]) == 1
    assert current_version(["2/model.py", "10/model.py", "config.pbtxt"]) == 10
