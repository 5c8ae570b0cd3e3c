"""The process between ``serve`` and tritonserver, and the limits that it and ``serve`` set."""

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


GIB = 2**30


def in_process(code: str, **wanted: tuple[int, int]) -> str:
    """Runs the code in a process with these limits; returns its output."""
    lines = [f"resource.setrlimit(resource.{name}, {pair})" for name, pair in wanted.items()]
    source = "\n".join(["import resource", *lines, code])
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


RAISED = """
from hf_triton.serving.supervision.lifecycle import raise_limits
raise_limits()
print(resource.getrlimit(resource.RLIMIT_AS)[0] >> 30)
"""
STACK = """
from hf_triton.tritonserver.guard import give_deep_stacks
give_deep_stacks()
print(resource.getrlimit(resource.RLIMIT_STACK)[0] >> 20)
"""


def test_a_limit_that_may_be_raised_is_raised() -> None:
    assert in_process(RAISED, RLIMIT_AS=(8 * GIB, 16 * GIB)) == "16"


@pytest.mark.parametrize("gib,stack_mib", [(1, 8), (16, 16), (64, 64)])
def test_threads_stacks_leave_room_where_addresses_are_limited(gib: int, stack_mib: int) -> None:
    hard = in_process("print(resource.getrlimit(resource.RLIMIT_STACK)[1])")
    if 0 <= int(hard) < stack_mib << 20:
        pytest.skip("this machine allows no deep stacks")
    assert in_process(STACK, RLIMIT_AS=(gib * GIB, gib * GIB)) == str(stack_mib)
