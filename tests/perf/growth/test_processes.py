"""What a process takes is its own, and not that of the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from generator.errors import PerfError
from perf.growth.axes.cli_process import run_cli
from perf.growth.command import too_little
from perf.usage import available_gib, cpu_seconds, memory_gib, peak_memory

HELD_MIB = 150
_HOLDS = f"held = bytearray({HELD_MIB} * 2**20); print('held', flush=True); input()"


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """A process group of one, which holds HELD_MIB."""
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_groups_memory_and_time_are_read(holder: subprocess.Popen[str]) -> None:
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with peak_memory(holder.pid) as peak:
            assert memory_gib(holder.pid) * 1024 > HELD_MIB
        assert HELD_MIB < peak.gib * 1024 < 2 * HELD_MIB
        assert 0 < cpu_seconds(holder.pid) < 60
        holder.communicate("\n")
    assert memory_gib(holder.pid) == 0


def test_a_commands_peak_memory_is_not_that_of_its_parent() -> None:
    held = bytearray(os.urandom(1)) * (200 * 2**20)
    began_s = time.monotonic()
    taken = run_cli(["perf", "--help"], "usage: hf-triton perf")
    assert len(held) > 0
    assert 10 < taken["peak_memory_mib"] < 150
    assert taken["cpu_s"] > 0
    assert 0 < taken["wall_s"] < time.monotonic() - began_s


def test_a_command_that_did_something_else_is_told_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match=r"(?s)validate ended with exit code 1.*no such file"):
        run_cli(["validate", "--config", str(tmp_path / "none.yaml")], "no mistakes")


def test_what_is_needed_is_held_against_what_is_free() -> None:
    assert available_gib() > 0
    assert too_little(0.0, "nothing") == ""
    assert too_little(1e6, "32 models").startswith("not enough memory for 32 models")
