"""The thread that owns a model, whatever its engine computes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import pytest
import torch

from hf_triton.runtime.engine.thread import EngineThread
from hf_triton.runtime.errors import LoadError, OverloadedError
from tests.support.triton import eventually


class Panic(BaseException):
    """A panic in Rust, as Python has it: no Exception."""


class Counting:
    """Finishes one number a step, each with the threads that torch has there; fails where told."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.thread: EngineThread[int] = EngineThread("counting", self, num_threads=3, watchdog_s=1)
        self.error = error
        self.waiting: list[int] = []
        self.answers: dict[int, int | Exception] = {}

    def prepare(self) -> None:
        if self.error is not None:
            raise self.error

    def has_work(self) -> bool:
        return bool(self.waiting)

    def add(self, items: Sequence[int]) -> None:
        self.waiting += items

    def step(self) -> None:
        if self.error is not None:
            raise self.error
        for item in self.thread.release([self.waiting.pop(0)]):
            self.answers[item] = torch.get_num_threads()

    def end(self, items: Sequence[int], error: Exception) -> None:
        self.answers.update((item, error) for item in self.thread.release(items))

    give_up = end


def test_the_engines_thread_has_torchs_threads_and_a_short_switch_interval() -> None:
    engine = Counting()
    engine.thread.start()
    engine.thread.submit([4, 5])
    assert eventually(lambda: len(engine.answers) == 2)
    engine.thread.stop()
    assert engine.answers == {4: 3, 5: 3}
    assert sys.getswitchinterval() < 0.001, "Python's own 5 ms hold up steps"


@pytest.mark.parametrize("error", [ValueError("two\nlines"), Panic("two\nlines")])
def test_whatever_preparing_raises_fails_the_load_with_one_line(error: BaseException) -> None:
    engine = Counting(error)
    with pytest.raises(LoadError) as raised:
        engine.thread.start()
    kind = type(error).__name__
    assert str(raised.value) == f"the counting engine failed to start: {kind}: two lines"
    assert not engine.thread.is_alive


def test_a_dead_engine_answers_everyone_and_says_what_to_do(log_lines: list[str]) -> None:
    engine = Counting()
    engine.thread.start()
    engine.error = Panic("a prompt")
    with engine.thread.condition:
        engine.thread.submit([1, 2])
        engine.thread.submit([3])
    assert eventually(lambda: len(engine.answers) == 3)
    assert {str(answer) for answer in engine.answers.values()} == {
        "the engine died: Panic: try again later"
    }
    with pytest.raises(OverloadedError, match="the engine died, reload the model"):
        engine.thread.submit([4])
    assert not engine.thread.is_healthy
    [line] = log_lines
    assert "the thread of the counting engine died: Panic at test_engine_thread.py:" in line
    assert "a prompt" not in line


def test_of_all_who_finish_an_item_one_gets_it() -> None:
    engine = Counting()
    engine.thread.submit([7])
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(engine.thread.release([7]))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=len)[-2:] == [[], [7]]
