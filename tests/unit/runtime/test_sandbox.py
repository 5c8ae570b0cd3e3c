"""Functions that take too long, or too much memory, end the process that runs them alone."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from hf_triton.runtime.errors import CancelledError, OverloadedError, RequestError
from hf_triton.runtime.sandbox.pool import ForkServer, Sandbox, SandboxEndedError, SandboxError
from tests.support.triton import eventually

FUNCTIONS = """
import os, stat, sys
from hf_triton.runtime.errors import RequestError

def reverse(*given):
    return b"|".join(part[::-1] for part in given)

def spin(_):
    while True: pass

def grow(num_bytes):
    return b"%d" % len(bytearray(int(num_bytes)))

def refuse(name):
    raise RequestError(f"{name.decode()}: got this, allowed: that")

def fail(text):
    raise ValueError(text)

def who():
    return b"%d" % os.getpid()

def zeros(num_bytes):
    return bytes(int(num_bytes))

def leave(status):
    os._exit(int(status))

def look():
    names = " ".join([*sys.modules, *os.environ, *sys.path])
    num_sockets = sum(stat.S_ISSOCK(os.fstat(int(n)).st_mode) for n in descriptors())
    return f"{names} {num_sockets}".encode()

def descriptors():
    listed = os.listdir("/proc/self/fd")
    return [n for n in listed if os.path.exists(f"/proc/self/fd/{n}")]
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "sandboxed_functions.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("sandboxed_functions")
    del sys.modules["sandboxed_functions"]


@pytest.fixture
def sandbox(functions: ModuleType) -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def test_a_function_is_called_and_its_process_kept(sandbox: Sandbox, functions: ModuleType) -> None:
    large = os.urandom(20_000_000)
    given = (b"abc", b"", large)
    assert sandbox.call(functions.reverse, *given, time_limit_s=10) == functions.reverse(*given)
    pids = {int(sandbox.call(functions.who, time_limit_s=10)) for _ in range(5)}
    assert len(pids) == 1
    assert pids != {os.getpid()}


def test_errors_end_no_process(sandbox: Sandbox, functions: ModuleType) -> None:
    before = sandbox.call(functions.who, time_limit_s=10)
    with pytest.raises(RequestError, match=r"^image: got this, allowed: that$"):
        sandbox.call(functions.refuse, b"image", time_limit_s=10)
    with pytest.raises(SandboxError, match=r"^ValueError$"):
        sandbox.call(functions.fail, b"a caller's text", time_limit_s=10)
    assert sandbox.call(functions.who, time_limit_s=10) == before


@pytest.mark.threat("sandbox")
def test_too_much_time_or_memory_ends_one_call(sandbox: Sandbox, functions: ModuleType) -> None:
    neighbour = sandbox.call(functions.who, time_limit_s=10)
    ended: list[Exception] = []

    def spin() -> None:
        try:
            sandbox.call(functions.spin, b"", time_limit_s=0.5)
        except SandboxError as error:
            ended.append(error)

    spinning = threading.Thread(target=spin)
    spinning.start()
    time.sleep(0.1)  # it has the first process
    assert sandbox.call(functions.who, time_limit_s=10) != neighbour
    spinning.join(10)
    assert isinstance(ended[0], SandboxEndedError)
    with pytest.raises(SandboxError, match=r"^MemoryError$"):
        sandbox.call(functions.grow, b"200000000", time_limit_s=10, max_bytes=2**20)
    assert sandbox.call(functions.grow, b"200000000", time_limit_s=10) == b"200000000"


@pytest.mark.threat("sandbox")
def test_a_caller_who_left_is_not_worked_for(sandbox: Sandbox, functions: ModuleType) -> None:
    began_s = time.monotonic()
    with pytest.raises(CancelledError):
        sandbox.call(functions.spin, b"", time_limit_s=60, has_left=lambda: True)
    assert time.monotonic() - began_s < 30


def parent(pid: int) -> int:
    return psutil.Process(pid).ppid()


def test_one_that_somebody_else_kills_is_no_fault_of_the_callers(
    sandbox: Sandbox, functions: ModuleType
) -> None:
    program = parent(int(sandbox.call(functions.who, time_limit_s=10)))

    def kill() -> bool:
        """Somebody else does, while it is waited for."""
        for child in Path(f"/proc/{program}/task/{program}/children").read_text().split():
            with suppress(ProcessLookupError):  # asked again before the end is noticed
                os.kill(int(child), signal.SIGKILL)
        return False

    with pytest.raises(OverloadedError, match="went away before it answered: try again"):
        sandbox.call(functions.spin, b"", time_limit_s=60, has_left=kill)


def test_one_that_ends_with_questions_unread_has_its_answers_read(
    sandbox: Sandbox, functions: ModuleType
) -> None:
    process = sandbox.new_process()
    for function, given in ((functions.reverse, b"abc"), *[(functions.spin, b"")] * 2):
        process.ask(function, given, time_limit_s=2, max_bytes=2**28)
    assert eventually(lambda: not process.is_there)
    assert process.next_answer(0)[1] == b"cba"  # type: ignore[index]
    with pytest.raises(SandboxEndedError):
        process.next_answer(0)
    assert not process.was_killed
    with pytest.raises(SandboxEndedError):
        sandbox.call(functions.leave, b"%d" % signal.SIGKILL, time_limit_s=10)


@pytest.mark.parametrize("name, given", [("reverse", b"x" * 100_000), ("zeros", b"100000")])
def test_a_large_part_is_not_lost_where_no_descriptor_is_left(
    sandbox: Sandbox, functions: ModuleType, name: str, given: bytes
) -> None:
    function = getattr(functions, name)
    assert sandbox.call(functions.grow, b"1", time_limit_s=10) == b"1"
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OverloadedError, match="went away before it answered: try again"):
            sandbox.call(function, given, time_limit_s=10)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_was_killed_is_started_again(sandbox: Sandbox, functions: ModuleType) -> None:
    worker = int(sandbox.call(functions.who, time_limit_s=10))
    program = parent(worker)
    os.kill(worker, signal.SIGKILL)
    assert eventually(lambda: psutil.Process(worker).status() == psutil.STATUS_ZOMBIE)
    assert sandbox.call(functions.reverse, b"abc", time_limit_s=10) == b"cba"
    assert eventually(lambda: not Path("/proc", str(worker)).exists())
    os.kill(program, signal.SIGKILL)
    assert eventually(lambda: not sandbox.server.runs)
    assert sandbox.call(functions.reverse, b"abc", time_limit_s=10) == b"cba"


def test_a_process_that_was_never_forked_counts_as_killed() -> None:
    server = ForkServer(None)
    server.start(b"")
    assert server.was_killed(1)
    server.close()


def test_the_program_outlives_many_processes_that_end_at_once(
    sandbox: Sandbox, functions: ModuleType
) -> None:
    program = parent(int(sandbox.call(functions.who, time_limit_s=10)))
    for _ in range(30):
        processes = [sandbox.new_process() for _ in range(8)]
        for process in processes:
            process.ask(functions.leave, b"0", time_limit_s=10)
        for process in processes:
            with pytest.raises(SandboxEndedError):
                process.wait(10, lambda: False)
    assert parent(int(sandbox.call(functions.who, time_limit_s=10))) == program


@pytest.mark.threat("sandbox")
def test_a_process_has_no_torch_no_secret_and_no_descriptor(
    sandbox: Sandbox, functions: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.syspath_prepend(Path.cwd())
    with socket.socket() as listening:
        listening.set_inheritable(True)
        *found, num_sockets = sandbox.call(functions.look, time_limit_s=10).decode().split()
    assert "torch" not in found
    assert "HF_TOKEN" not in found
    assert str(Path.cwd()) not in found
    assert num_sockets == "1"


def test_what_is_closed_takes_no_calls_and_leaves_no_process(
    sandbox: Sandbox, functions: ModuleType
) -> None:
    worker = int(sandbox.call(functions.who, time_limit_s=10))
    sandbox.close()
    assert eventually(lambda: not Path("/proc", str(worker)).exists())
    with pytest.raises(OverloadedError, match="is being unloaded"):
        sandbox.call(functions.who, time_limit_s=10)
