"""`fetch --verify` reads every byte again, names what is wrong, and fetches it again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub
from tests.unit.fetch.conftest import FILES
from tests.unit.fetch.workplace import Ran, Workplace


def verify(work: Workplace, *names: str) -> Ran:
    return work.run("fetch", "--verify", "--dry-run", *names)


def damage_missing(path: Path) -> None:
    path.resolve().unlink()


def damage_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(10)


def damage_altered(path: Path) -> None:
    """One bit, without any change of size or time: what only reading can find."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"v")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES = {
    "is missing": damage_missing,
    "has 10 bytes where models.lock has 7000": damage_short,
    "has another SHA-256 than in models.lock": damage_altered,
}


def test_an_intact_cache_is_said_to_be_so(work: Workplace, hub: FakeHub) -> None:
    work.fetch()
    hub.paths.clear()
    ran = verify(work)
    assert (ran.code, ran.err, hub.paths) == (0, "", [])
    assert ran.out.endswith(": all here\nall is here, as in models.lock\n")


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_file_is_named_and_repaired(work: Workplace, hub: FakeHub, what: str) -> None:
    work.fetch()
    DAMAGES[what](work.snapshots()[0] / "model.safetensors")
    for _ in range(2):  # what was found wrong is not taken for right the next time
        ran = verify(work)
        assert ran.code == 1
        assert ran.err == (
            f"tiny: model.safetensors {what}\n"
            "hf-triton: 1 file is not as in models.lock: run hf-triton fetch --verify\n"
        )
    hub.count_anew()
    assert work.run("fetch", "--verify").code == 0
    assert hub.sent == {"model.safetensors": 7000}
    assert verify(work).code == 0
    assert work.files() == FILES


def test_a_file_that_was_added_is_named_and_taken_away(work: Workplace) -> None:
    work.fetch()
    (work.snapshots()[0] / "vocab/evil.py").write_text("import os")
    assert "tiny: vocab/evil.py is not in models.lock\n" in verify(work).err
    assert work.run("fetch", "--verify").code == 0
    assert work.files() == FILES


def test_other_models_are_left_out_where_names_are_given(work: Workplace) -> None:
    work.write("tiny", "second")
    work.fetch()
    damage_missing(work.snapshots("second")[0] / "config.json")
    assert verify(work, "tiny").code == 0
    assert verify(work).code == 1
