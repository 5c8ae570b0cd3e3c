"""Counts the memory that dead processes left in a server that lives."""

from __future__ import annotations

import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_triton.serving.supervision.stub_deaths import are_too_many, left_behind


@pytest.fixture
def prefix() -> Iterator[str]:
    name = f"hf_triton_test_{uuid.uuid4().hex}_"
    yield name
    for region in Path("/dev/shm").glob(f"{name}*"):
        region.unlink()


@pytest.mark.threat("leftovers-of-deaths")
def test_regions_that_no_living_process_uses_are_counted_also_without_zombies(prefix: str) -> None:
    """From 26.0x on a question whether a model is ready takes note of a dead process."""
    names = ["", "", "", "beat_7", "left_1"]
    unused, used, new, *others = (
        Path(f"/dev/shm/{prefix}{name or uuid.uuid4()}") for name in names
    )
    for region in (unused, used, new, *others):
        region.write_bytes(bytes(1 << 20))
        os.utime(region, None if region == new else (0, 0))
    size = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert left_behind(prefix, [os.getpid()]) == (1, (4 << 20) / size)
        assert left_behind(prefix, []) == (2, (5 << 20) / size)


@pytest.mark.threat("leftovers-of-deaths")
@pytest.mark.parametrize(
    "num, part, expected",
    [(0, 0.9, False), (1, 0.2, False), (1, 0.3, True), (23, 0.0, False), (24, 0.0, True)],
)
def test_too_many_are_what_a_container_has_no_room_for(
    num: int, part: float, expected: bool
) -> None:
    assert are_too_many(num, part) is expected
