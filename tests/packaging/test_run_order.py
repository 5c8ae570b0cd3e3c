"""Runs of the tests: one process has the one server, and what passes only at last is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_order import shares_the_server

ROOT = Path(__file__).parents[2]
TESTS = """\
from pathlib import Path

def test_sound():
    pass

def test_flaky():
    marker = Path(__file__).with_name("ran")
    had_run = marker.exists()
    marker.touch()
    assert had_run

def test_broken():
    assert False
"""


def test_files_that_share_a_server_are_told_by_their_text() -> None:
    server = ROOT / "tests" / "server"
    assert shares_the_server(server / "test_scenarios.py")
    assert not shares_the_server(server / "test_serve.py")
    clients = [*(ROOT / "tests" / "clients").glob("test_*.py")]
    assert all(map(shares_the_server, clients)), "their conftest.py asks for it"


@pytest.mark.slow
def test_what_passes_only_the_second_time_is_listed_as_flaky(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(*arguments: str) -> str:
        # Of this checkout: the hooks of the whole suite.
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pytest.ini"]
        asked = [*command, "-o", f"pythonpath={ROOT}", "test_it.py", *arguments]
        return subprocess.run(
            asked,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert "flaky" not in run("-q", "--no-summary").partition("short test summary")[2]
    said = run("--last-failed", "--flaky")
    assert "flaky: 1 failed at first and passed now" in said
    assert said.partition("passed now")[2].splitlines()[1] == "test_it.py::test_flaky"
