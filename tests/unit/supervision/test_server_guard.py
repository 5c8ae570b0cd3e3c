"""The process between ``serve`` and tritonserver: nothing of the server outlives it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from hf_triton.tritonserver import guard as server_guard
from hf_triton.tritonserver.stubs import Stub, still_alive
from tests.support.triton import eventually

PROGRAM = "sleep 300 & echo $!; {end}"


@pytest.mark.parametrize(
    "end, code", [("kill -KILL $$", -signal.SIGKILL), ("kill -ABRT $$", -signal.SIGABRT)]
)
def test_what_a_crashed_program_leaves_is_ended_with_the_guard(end: str, code: int) -> None:
    guard = [sys.executable, "-IS", server_guard.__file__, "no_such_shared_memory_", ""]
    with subprocess.Popen(
        [*guard, "/bin/sh", "-c", PROGRAM.format(end=end)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        orphan = int(process.stdout.readline())
        assert process.wait(timeout=60) == code
        assert eventually(lambda: not still_alive([Stub("orphan", "1", orphan)]))
