"""What a server may not have: told at the start, and where it dies for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hf_triton.serving.supervision import limits

GIB = 2**30


def in_process(code: str, **wanted: tuple[int, int]) -> str:
    """What the code prints, in a process with these limits."""
    lines = [f"resource.setrlimit(resource.{name}, {pair})" for name, pair in wanted.items()]
    source = "\n".join(["import resource", *lines, code])
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHORTAGE = "from hf_triton.serving.supervision import limits; print(limits.shortage_of_memory())"
STACK = """
from hf_triton.tritonserver.guard import give_deep_stacks
give_deep_stacks()
print(resource.getrlimit(resource.RLIMIT_STACK)[0] >> 20)
"""


@pytest.mark.parametrize("name,flag", [("RLIMIT_AS", "-v"), ("RLIMIT_DATA", "-d")])
def test_a_limit_is_named_with_how_to_lift_it(name: str, flag: str) -> None:
    said = in_process(SHORTAGE, **{name: (8 * GIB, 8 * GIB)})
    assert f"limited to 8.0 GiB for each process (ulimit {flag})" in said


def test_a_limit_that_may_be_raised_is_raised() -> None:
    raised = SHORTAGE.replace("print", "limits.raise_all(); print")
    assert in_process(raised, RLIMIT_AS=(8 * GIB, 16 * GIB)).startswith(
        "addresses are limited to 16"
    )
    unlimited = "resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY"
    if in_process(f"print({unlimited})") == "True":
        assert "addresses" not in in_process(raised, RLIMIT_AS=(8 * GIB, -1))


def test_strict_overcommit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OVERCOMMIT", tmp_path / "overcommit")
    for setting, is_named in (("2\n", True), ("0\n", False)):
        (tmp_path / "overcommit").write_text(setting)
        assert ("(vm.overcommit_memory is 2)" in limits.shortage_of_memory()) is is_named


@pytest.mark.parametrize("gib,stack_mib", [(1, 8), (16, 16), (64, 64)])
def test_threads_stacks_leave_room_where_addresses_are_limited(gib: int, stack_mib: int) -> None:
    hard = in_process("print(resource.getrlimit(resource.RLIMIT_STACK)[1])")
    if 0 <= int(hard) < stack_mib << 20:
        pytest.skip("this machine allows no deep stacks")
    assert in_process(STACK, RLIMIT_AS=(gib * GIB, gib * GIB)) == str(stack_mib)
