"""Restarts a process that died, later each time."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from generator.errors import ServerError
from hf_triton.tritonserver.listen import Listen
from hf_triton.tritonserver.restart_policy import Restarts


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


def test_a_folder_of_sockets_that_was_cleared_away_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    Listen(sockets=str(folder)).check_triton()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    Listen(sockets=str(folder)).check_triton()


def test_a_folder_of_sockets_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o755)
    with pytest.raises(ServerError, match="is open to other users"):
        Listen(sockets=str(folder)).check_triton()
