"""The server loads exactly what is locked: everything is checked before anything is loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights import locked_files
from tests.support.fake_hub import COMMIT, FakeHub
from tests.unit.fetch.conftest import FILES
from tests.unit.fetch.test_verify import damage_missing, damage_short
from tests.unit.fetch.workplace import Workplace

NEW = "b" * 40


def refusal(work: Workplace) -> str:
    with pytest.raises(LoadError) as raised:
        work.loaded()
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_models_that_share_a_repository_get_the_files_that_each_may_have(
    work: Workplace, hub: FakeHub
) -> None:
    hub.repositories["org/tiny"].files["2_Dense/model.safetensors"] = b"d"
    hub.repositories["org/tiny"].files["pytorch_model.bin"] = b"p"
    work.write("tiny", "second")
    work.fetch()
    locked = work.served("second").locked_files
    assert locked is not None
    assert set(locked) == {*FILES, "2_Dense/model.safetensors"}


def test_hashing_is_done_once(work: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    work.fetch()

    def refuse(*_: Any) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr(locked_files, "hash_file", refuse)
    assert work.loaded() == work.snapshots()[0]


def alter(folder: Path) -> None:
    path = folder / "model.safetensors"
    fetched = path.stat()
    path.write_bytes(b"v" + path.read_bytes()[1:])
    # Some file systems' clocks tick every few milliseconds, and a fetch may take no longer.
    os.utime(path, ns=(fetched.st_atime_ns, fetched.st_mtime_ns + 10**9))


CHANGES: dict[str, Callable[[Path], object]] = {
    "model.safetensors has 10 bytes where models.lock has 7000": lambda folder: damage_short(
        folder / "model.safetensors"
    ),
    "model.safetensors has another SHA-256 than in models.lock": alter,
    "pytorch_model.bin is not in models.lock": lambda folder: (
        folder / "pytorch_model.bin"
    ).write_bytes(b"p"),
    "1_Pooling is not in models.lock": lambda folder: (folder / "1_Pooling").symlink_to("/tmp"),
}


@pytest.mark.threat("changed-files")
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_as_locked_is_not_loaded_and_a_fetch_mends_it(
    work: Workplace, change: str
) -> None:
    work.fetch()
    CHANGES[change](work.snapshots()[0])
    for _ in range(2):
        assert refusal(work) == (
            f"org/tiny@{COMMIT}: {change} (hf_cache/ of tiny); nothing was loaded. `hf-triton "
            "fetch tiny` repairs it"
        )
    work.fetch()
    work.loaded()


def test_a_half_deleted_cache_is_completed_from_the_hub(work: Workplace, hub: FakeHub) -> None:
    work.fetch()
    damage_missing(work.snapshots()[0] / "model.safetensors")
    (work.snapshots()[0] / "config.json").unlink()
    hub.count_anew()
    work.loaded()
    assert work.files() == FILES
    assert hub.sent["vocab/words.txt"] == 0


def test_a_half_deleted_cache_without_a_network_names_the_file(
    work: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.fetch()
    damage_missing(work.snapshots()[0] / "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # a Hub out of reach is tried for 23 s
    text = refusal(work)
    assert text.startswith(f"model.safetensors missing in hf_cache/: org/tiny@{COMMIT} could not ")
    assert text.endswith("; run `hf-triton fetch tiny` where the Hub can be reached")


@pytest.mark.parametrize("name", FILES)
def test_without_a_lock_a_half_deleted_cache_is_completed_too(work: Workplace, name: str) -> None:
    work.fetch()
    (work.folder / "models.lock").unlink()
    (work.snapshots()[0] / name).unlink()
    work.loaded()
    assert work.files() == FILES


@pytest.mark.parametrize("locked", [True, False])
def test_a_cache_behind_a_link_is_used(work: Workplace, hub: FakeHub, locked: bool) -> None:
    work.fetch()
    (work.folder / "volume").mkdir()
    work.cache().rename(work.folder / "volume/weights")
    work.cache().symlink_to(work.folder / "volume/weights")
    assert work.fetch("--locked").err == ""
    assert work.run("fetch", "--verify", "--dry-run").code == 0
    if not locked:
        (work.folder / "models.lock").unlink()
    hub.fails = True
    work.loaded()


@pytest.mark.threat("changed-files")
def test_a_hub_that_sends_something_else_is_refused_and_its_file_not_kept(
    work: Workplace, hub: FakeHub
) -> None:
    work.fetch()
    damage_missing(work.snapshots()[0] / "model.safetensors")
    hub.repositories["org/tiny"].sent_instead["model.safetensors"] = b"weighty" * 1000
    assert "model.safetensors has another SHA-256 than in models.lock" in refusal(work)
    hub.repositories["org/tiny"].sent_instead.clear()
    work.loaded()
    assert work.files() == FILES


def test_a_read_only_cache_is_served_from(work: Workplace) -> None:
    work.fetch()
    (work.cache() / locked_files.RECORD_FILE).unlink()
    (work.cache() / locked_files.RECORD_FILE).mkdir()  # root may write anywhere, but not to this
    assert work.loaded() == work.snapshots()[0]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}', '{"a": [1, 2, 3]}'])
def test_a_damaged_record_only_means_hashing_again(work: Workplace, content: str) -> None:
    work.fetch()
    Path(work.cache() / locked_files.RECORD_FILE).write_text(content)
    work.loaded()
    record = json.loads((work.cache() / locked_files.RECORD_FILE).read_text())
    assert len(record) == len(FILES)


def test_the_record_is_not_written_through_a_link_that_lies_there(
    work: Workplace, tmp_path: Path
) -> None:
    work.fetch()
    other = tmp_path / "other"
    other.write_text("another file of the server's user")
    record = work.cache() / locked_files.RECORD_FILE
    record.unlink()
    record.with_name(f"{record.name}.{os.getpid()}").symlink_to(other)
    work.loaded()
    assert record.is_file()
    assert other.read_text() == "another file of the server's user"
