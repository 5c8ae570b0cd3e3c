"""A process beside tritonserver: whether it gets on, and when it is started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from generator.errors import ServerError
from hf_triton.tritonserver import child_process
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.listen import HeldPorts, Listen
from hf_triton.tritonserver.restart_policy import Restarts
from tests.support.triton import eventually, free_ports

GETS_ON = """
import asyncio
from hf_triton.tritonserver.child_process import tell_ready

async def serve():
    tell_ready()
    await asyncio.sleep(600)

asyncio.run(serve())
"""
HANGS = "print('ready', flush=True); input()"


@pytest.fixture
def started() -> Iterator[list[ChildProcess]]:
    children: list[ChildProcess] = []
    yield children
    for child in children:
        child.kill()


def start(child: ChildProcess) -> None:
    child.begin_start()
    child.wait_until_it_listens()


def child_of(
    started: list[ChildProcess], program: str, ports: HeldPorts | None = None
) -> ChildProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = (sys.executable, "-c", program)
    child = ChildProcess(
        "the child", command, lambda: environment, ports or HeldPorts(Listen(), ())
    )
    started.append(child)
    return child


TELLS = """
import asyncio, sys
from hf_triton.tritonserver.child_process import Parent, tell_ready

async def serve():
    parent = Parent()
    tell_ready()
    await asyncio.sleep(0.05)
    parent.follow(lambda line: print(line.decode(), file=sys.stderr, flush=True))
    await parent.stop.wait()

asyncio.run(serve())
"""


GREETS_ONE = """
import sys
from hf_triton.tritonserver.listen import listening_socket

listening = listening_socket("127.0.0.1", int(sys.argv[1]), "--http-port")
print("ready", flush=True)
listening.accept()[0].sendall(b"hello")
input()
"""


def has_told(child: ChildProcess, told: list[str], num: int) -> bool:
    """Adds the child's line, if any; True once ``told`` has so many."""
    line = child.revive()
    if line:
        told.append(line)
    return len(told) >= num


def test_one_that_gets_on_is_never_silent_for_long(started: list[ChildProcess]) -> None:
    child = child_of(started, GETS_ON)
    start(child)
    child.heard_at_s -= 1000
    assert eventually(lambda: child.silent_s < 1000)
    assert child.revive() is None


def test_one_that_hangs_is_silent_and_started_again(started: list[ChildProcess]) -> None:
    child = child_of(started, HANGS)
    start(child)
    before = child.pid
    child.heard_at_s -= 1000
    assert child.silent_s >= 1000
    assert child.end_now("hangs") == "the child hangs and is started again (1 death in a row)"
    assert child.silent_s == 0
    assert child.why_not_up.startswith("the child hangs")
    told: list[str] = []
    assert eventually(lambda: has_told(child, told, 1))
    assert told == ["the child is back"]
    assert child.why_not_up == ""
    assert child.pid != before


def test_one_that_dies_is_started_again_later_each_time(started: list[ChildProcess]) -> None:
    child = child_of(started, HANGS)
    start(child)
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    told: list[str] = []
    assert eventually(lambda: has_told(child, told, 2))
    os.kill(child.pid, signal.SIGKILL)
    assert eventually(lambda: has_told(child, told, 4))
    assert told == [
        "the child died (exit code -9) and is started again (1 death in a row)",
        "the child is back",
        "the child died (exit code -9) and is started again in 1 s (2 deaths in a row)",
        "the child is back",
    ]


def test_who_connects_while_one_is_started_again_waits(started: list[ChildProcess]) -> None:
    listen = free_ports()
    child = child_of(started, GREETS_ONE, HeldPorts(listen, ("--http-port",)))
    child.command = (*child.command, str(listen.http_port))
    address = ("127.0.0.1", listen.http_port)
    start(child)
    with socket.create_connection(address) as client:
        assert client.recv(5) == b"hello"
    child.end_now("hangs")
    with socket.create_connection(address) as client:
        assert eventually(lambda: child.revive() == "the child is back")
        assert client.recv(5) == b"hello"
    child.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with socket.create_server(address), pytest.raises(ServerError, match="choose another with"):
        start(child)


def test_one_that_says_nothing_keeps_nobody_waiting_and_is_started_again(
    started: list[ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    child = child_of(started, HANGS)
    start(child)
    child.command = (sys.executable, "-c", "input()")
    child.end_now("hangs")
    assert child.revive() is None
    assert child.revive() is None
    assert child.silent_s == 0, "it has not begun to"
    monkeypatch.setattr(child_process, "START_TIMEOUT_S", 0.0)
    line = child.revive()
    assert line is not None
    assert line.startswith("the child did not start in time and is started again in 1 s")


def test_one_that_does_not_start_at_first_is_an_error(started: list[ChildProcess]) -> None:
    with pytest.raises(ServerError, match="the child did not start"):
        start(child_of(started, "raise SystemExit(1)"))


def test_it_is_told_how_things_are_at_each_start_and_change(
    started: list[ChildProcess], capfd: pytest.CaptureFixture[str]
) -> None:
    child, said = child_of(started, TELLS), ""

    def has_said(text: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said == text

    child.tell(b"one\n")
    start(child)
    assert eventually(lambda: has_said("one\n"))
    child.tell(b"one\n")
    child.tell(b"two\n")
    assert eventually(lambda: has_said("one\ntwo\n"))
    child.end_now("hangs")
    assert eventually(lambda: child.revive() == "the child is back")
    assert eventually(lambda: has_said("one\ntwo\ntwo\n"))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_restarts_come_later_each_time_up_to_a_minute_and_for_ever() -> None:
    restarts = Restarts(0, Clock())
    assert [restarts.died() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert {restarts.died() for _ in range(2000)} == {60}


def test_one_that_lived_for_a_while_is_started_at_once_again() -> None:
    clock = Clock()
    restarts = Restarts(clock=clock)
    assert [restarts.died(), restarts.died()] == [0, 1]
    restarts.lives()
    clock.now_s += 29
    restarts.lives()
    assert restarts.died() == 2
    restarts.lives()
    clock.now_s += 30
    restarts.lives()
    assert restarts.died() == 0


def test_too_many_failed_starts_in_a_row_are_the_end() -> None:
    restarts = Restarts(2, Clock())
    assert [restarts.died(), restarts.failed(), restarts.failed()] == [0, 1, 2]
    assert restarts.again(1.0) == "again in 1 s (2 of at most 2)"
    assert restarts.failed() is None
    assert restarts.num_failed == 3


def test_what_was_ready_once_may_fail_as_often_again() -> None:
    restarts = Restarts(1, Clock())
    assert restarts.failed() is not None
    restarts.lives()
    restarts.died()
    assert restarts.failed() is not None
    assert restarts.failed() is None
