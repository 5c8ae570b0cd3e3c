"""A thread that repeats something."""

from __future__ import annotations

import itertools
import time

import pytest

from hf_triton.runtime import log, repeating
from hf_triton.runtime.repeating import Repeating
from tests.support.triton import eventually


def test_a_wake_does_not_shorten_the_pause_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log, "error", logged.append)
    monkeypatch.setattr(repeating, "AFTER_ERROR_S", 0.3)
    began: list[float] = []

    def run() -> None:
        began.append(time.monotonic())
        again.wake()
        if len(began) < 3:
            raise ValueError

    again = Repeating("again", run)
    again.start()
    assert eventually(lambda: len(began) >= 4)
    again.close()
    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert min(pauses[:2]) >= 0.3
    assert len(logged) == 2


def test_an_end_does_not_wait_for_the_pause_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(log, "error", logged.append)
    monkeypatch.setattr(repeating, "AFTER_ERROR_S", 60.0)
    failing = Repeating("failing", lambda: 1 / 0)
    failing.start()
    assert eventually(lambda: bool(logged))
    began_s = time.monotonic()
    failing.close()
    assert time.monotonic() - began_s < 10
