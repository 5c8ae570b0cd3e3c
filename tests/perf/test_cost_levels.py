"""Long prompts beside a level, with a stand-in for the load generator."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from perf.serving_costs.levels import cpu_seconds, endless_load
from tests.support.triton import eventually

ANSWERS = """
import time
for _ in range(3): print('{"problem": PROBLEM}', flush=True)
print('{"prob', end='', flush=True)
time.sleep(600)
"""


def client(problem: str, then: str = "") -> list[str]:
    return [sys.executable, "-c", then or ANSWERS.replace("PROBLEM", problem)]


def test_whole_lines_are_counted_and_the_client_is_ended() -> None:
    with endless_load(client("null"), 0, "long-prompts") as count:
        assert eventually(lambda: count() == 3)
        begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 300


def test_a_wrong_answer_or_an_early_end_is_an_error() -> None:
    with (
        endless_load(client('"too short"'), 0, "long-prompts") as count,
        pytest.raises(subprocess.CalledProcessError),
    ):
        count_on(count)
    with (
        endless_load(client("", then="pass"), 0, "long-prompts") as count,
        pytest.raises(subprocess.CalledProcessError),
    ):
        count_on(count)


def count_on(count: Callable[[], int]) -> None:
    """Counts until that is an error, for a minute."""
    eventually(lambda: count() < 0)


def test_cpu_time_is_of_the_processes_below_too() -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    script = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds(process.pid) >= 0.29
        process.stdin.close()
