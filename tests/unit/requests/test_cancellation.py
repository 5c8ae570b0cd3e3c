"""Callers are checked seldom enough to cost little, and often enough to notice."""

from __future__ import annotations

import threading

import pytest

from hf_triton.runtime.request.cancellation import CancellationWatch, pause_s


@pytest.mark.parametrize(
    "num_asked, round_s, expected_s",
    [
        pytest.param(32, 0.0016, 0.08, id="fifty times what a round takes"),
        pytest.param(1, 0.00005, 0.005, id="never without a rest"),
        pytest.param(2, 0.004, 0.02, id="sooner for few, however slow the server is"),
        pytest.param(1000, 0.05, 1.0, id="every second at the latest"),
    ],
)
def test_the_pause_follows_what_asking_costs(
    num_asked: int, round_s: float, expected_s: float
) -> None:
    assert pause_s(num_asked, round_s) == pytest.approx(expected_s)


def test_a_server_that_can_not_tell_once_is_asked_again_and_not_while_nothing_waits(
    log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_triton.runtime.repeating.AFTER_ERROR_S", 0.01)
    asked, num_rounds = threading.Semaphore(0), 0

    def ask_all() -> int:
        nonlocal num_rounds
        num_rounds += 1
        if num_rounds == 1:
            raise OSError("no shared memory left")
        asked.release()
        return 0

    watch = CancellationWatch(ask_all)
    assert asked.acquire(timeout=60)
    assert not asked.acquire(timeout=0.05)
    watch.wake()
    assert asked.acquire(timeout=60)
    watch.close()
    [line] = log_lines
    assert "cancellations: OSError at test_cancellation.py" in line
