"""Requests that outlive the process that computes them: when they are sent, alone or not at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from hf_triton.ports import retries as module
from hf_triton.ports.refusal import RefusedError
from hf_triton.ports.retries import UNREACHABLE, InFlight, RetryCoordinator
from hf_triton.ports.time_limit import timeout
from hf_triton.tritonserver.model_state import Cause
from tests.unit.ports.http_ports import Supervisor

CRASH = "its Python process died (exit code 3)"
KILLED = "its Python process died (killed by SIGKILL: out of memory?)"
CAUSES = {CRASH: Cause.CRASHED, KILLED: Cause.KILLED}
AWAY = "the engine m_stream went away before it answered: try again"


def supervisor_of(port: RetryCoordinator) -> Supervisor:
    """One that has told that the model is ready."""
    found = Supervisor(port)
    found.tell()
    return found


def held_of(port: RetryCoordinator, timeout_s: float = 60.0) -> tuple[InFlight, list[str]]:
    """A request that is sent again when it is lost; and how often it was lost."""
    losses: list[str] = []

    def lose() -> None:
        losses.append("lost")
        held.lost()

    held = InFlight(port, "m", lose, lambda _payload: timeout_s)
    return held, losses


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTICED_S", 0.2)


async def test_a_request_goes_at_once_and_waits_only_for_what_comes_back() -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    await InFlight(port, "m", lambda: None).wait_until_sendable()
    await InFlight(port, "elsewhere", lambda: None).wait_until_sendable()
    supervisor.tell(is_coming=True)
    held = InFlight(port, "m", lambda: None)
    waiting = asyncio.create_task(held.wait_until_sendable())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    supervisor.tell()
    await asyncio.wait_for(waiting, 5)


async def test_a_death_is_told_to_those_that_are_computed_alone() -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    (sent, losses), (answered, none), (waiting, neither) = (held_of(port) for _ in range(3))
    for one in (sent, answered):
        await one.wait_until_sendable()
    answered.end()
    supervisor.kill(CRASH, Cause.CRASHED)
    assert (losses, none, neither) == (["lost"], [], [])
    await waiting.wait_until_sendable()


@pytest.mark.threat("requests-that-kill")
@pytest.mark.parametrize("why, deaths", [(CRASH, 2), (KILLED, 4), ("it hangs", 4)])
async def test_what_ends_its_process_alone_is_refused(
    capsys: pytest.CaptureFixture[str], why: str, deaths: int
) -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    held, losses = held_of(port)
    await held.wait_until_sendable()

    async def die_again() -> None:
        while True:
            supervisor.kill(why, CAUSES.get(why, Cause.HUNG))
            await held.wait_until_sendable()

    with pytest.raises(RefusedError, match=f"died {deaths} times") as refused:
        await asyncio.wait_for(die_again(), 5)
    held.end()
    assert (refused.value.status, len(losses)) == (500, deaths)
    assert why in refused.value.text
    assert "a request is refused: model 'm' died" in capsys.readouterr().err


@pytest.mark.parametrize("why, gets_on", [(KILLED, True), (KILLED, False), (CRASH, True)])
async def test_a_stream_that_gets_on_is_not_what_is_killed(
    why: str, gets_on: bool, tmp_path: Path
) -> None:
    supervisor = supervisor_of(port := RetryCoordinator(f"{tmp_path}/"))
    held = InFlight(port, "m", lambda: held.lost(), stream="0" * 32)
    await held.wait_until_sendable()
    num = 0
    with suppress(RefusedError):
        for num in range(8):
            held.passed_on(num if gets_on or not num else 0)
            supervisor.kill(why, CAUSES.get(why, Cause.HUNG))
            await held.wait_until_sendable()
    held.end()
    assert (num == 7) is (why == KILLED and gets_on)


@pytest.mark.threat("requests-that-kill")
async def test_suspects_go_one_by_one_and_neighbours_are_cleared() -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    culprit, _ = held_of(port)
    neighbours = [held_of(port)[0] for _ in range(4)]
    running: list[InFlight] = []
    for one in (culprit, *neighbours):
        await one.wait_until_sendable()
    supervisor.kill(CRASH, Cause.CRASHED)

    async def again(held: InFlight) -> int:
        await held.wait_until_sendable()
        running.append(held)
        assert len(running) == 1
        await asyncio.sleep(0.01)
        if held is culprit:
            supervisor.kill(CRASH, Cause.CRASHED)
            running.remove(held)
            await held.wait_until_sendable()
        running.remove(held)
        held.end()
        return 200

    answers = [again(held) for held in (neighbours[0], culprit, *neighbours[1:])]
    found = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 10)
    culprit.end()
    assert isinstance(refused := found.pop(1), RefusedError)
    assert refused.status == 500
    assert found == [200] * 4


@pytest.mark.parametrize("timeout_s, most_s", [(0.05, 120.0), (60.0, 0.05)])
async def test_a_request_waits_no_longer_than_its_own_time(
    timeout_s: float, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", most_s)
    supervisor_of(port := RetryCoordinator()).tell(is_coming=True)
    with pytest.raises(RefusedError, match="did not come back in time") as refused:
        await asyncio.wait_for(held_of(port, timeout_s)[0].wait_until_sendable(), 5)
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "5"})


async def test_a_second_try_is_lost_when_its_time_is_over() -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    held, losses = held_of(port, 0.1)
    await held.wait_until_sendable()
    supervisor.kill(KILLED)
    await held.wait_until_sendable()
    while len(losses) < 2:
        await asyncio.sleep(0.005)
    with pytest.raises(RefusedError, match="in time"):
        await held.wait_until_sendable()


async def test_an_error_says_that_a_model_is_away_only_where_it_may_come_back() -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    held, _ = held_of(port)
    await held.wait_until_sendable()
    assert not held.is_retryable("text_input: missing, a text is required")
    assert not InFlight(port, "elsewhere", lambda: None).is_retryable(AWAY)
    assert held.is_retryable(AWAY)
    await asyncio.sleep(0.25)
    assert not held.is_retryable(AWAY)  # nobody brings it back
    assert held.is_retryable(UNREACHABLE)  # whoever tells of models starts tritonserver again
    supervisor.tell(is_coming=True)
    assert held.is_retryable(AWAY)


async def test_nothing_waits_where_the_server_stops() -> None:
    supervisor = supervisor_of(port := RetryCoordinator())
    supervisor.tell(is_coming=True)
    held, _ = held_of(port)
    waiting = asyncio.create_task(held.wait_until_sendable())
    await asyncio.sleep(0.02)
    port.begin_stop()
    with pytest.raises(RefusedError, match="the server is stopping"):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("num_passes", range(4))
async def test_who_leaves_as_its_turn_comes_keeps_nobody_waiting(num_passes: int) -> None:
    port = RetryCoordinator()
    await run_alone(port)
    waiting = asyncio.create_task(run_alone(port))
    await asyncio.sleep(0.02)
    port.exclusive.release()
    if await leave(waiting, num_passes):
        port.exclusive.release()
    await run_alone(port)


async def run_alone(port: RetryCoordinator) -> None:
    async with timeout(5):
        await port.exclusive.acquire()


async def leave(waiting: asyncio.Task[None], num_passes: int) -> bool:
    """The caller leaves after so many passes of the loop. Returns whether it had its turn before;
    a task that is cancelled ends as cancelled.
    """
    for _ in range(num_passes):
        await asyncio.sleep(0)
    had_its_turn = not waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled() is not had_its_turn
    return had_its_turn


async def test_half_a_line_changes_nothing() -> None:
    supervisor_of(port := RetryCoordinator()).tell(is_coming=True)
    port.follow(b'{"m":[false')
    assert port.model("m").is_coming
