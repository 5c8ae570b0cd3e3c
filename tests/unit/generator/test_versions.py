"""A folder's current version: whatever is rendered goes there, and older ones stay as they are."""

from __future__ import annotations

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
from generator.repository.compare import folder_version
from generator.repository.versions import (
    current_version,
    served_by,
    version_of,
)
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, snapshot

RENDERED = {"config.pbtxt": b'name: "m"\n', "1/model.py": b"code"}


def renumber(folder: Path, version: int) -> None:
    """Makes version 1 of a generated folder ``version``, as after so many changes."""
    (folder / "1").rename(folder / str(version))
    files = snapshot(folder)
    del files[MANIFEST_FILE]
    hashes = {path: digest(content) for path, content in files.items()}
    (folder / MANIFEST_FILE).write_bytes(to_bytes(hashes))


@pytest.fixture
def folder(work: Path, run: Run) -> Path:
    (work / "models.yaml").write_text(ONE_MODEL)
    run("generate")
    return work / "model_repository" / "demo"


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
