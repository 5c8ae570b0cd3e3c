"""The limits of a server, and of its threads' stacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
