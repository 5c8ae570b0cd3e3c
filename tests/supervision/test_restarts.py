"""When something that died is started again, and when not."""

from __future__ import annotations

from generator.server.restart_policy import RestartPolicy, Restarts


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_restarts_come_later_each_time_up_to_a_minute() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=20), Clock())
    assert [restarts.died() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_one_that_lived_for_a_while_is_started_at_once_again() -> None:
    clock = Clock()
    restarts = Restarts(RestartPolicy(), clock)
    assert [restarts.died(), restarts.died()] == [0, 1]
    restarts.lives()
    clock.now_s += 29
    assert restarts.died() == 2
    restarts.lives()
    clock.now_s += 30
    assert restarts.died() == 0


def test_too_many_deaths_within_the_window_are_the_end() -> None:
    clock = Clock()
    restarts = Restarts(RestartPolicy(max_restarts=2), clock)
    assert [restarts.died(), restarts.died(), restarts.died()] == [0, 1, None]
    assert restarts.num_recent == 3
    clock.now_s += 600
    assert restarts.died() is not None, "old deaths are forgotten"


def test_without_restarts_the_first_death_is_the_end() -> None:
    assert Restarts(RestartPolicy(max_restarts=0)).died() is None
