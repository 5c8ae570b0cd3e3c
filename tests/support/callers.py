"""Callers who ask on and on while something else happens."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def asking(*asks: Callable[[], Any], pause_s: float = 0.0) -> Iterator[list[list[Any]]]:
    """Asks in a thread each, again and again until the block ends, and once more. Yields what each
    is answered, in order; an exception is an answer too.
    """
    answers: list[list[Any]] = [[] for _ in asks]
    has_ended = threading.Event()

    def ask_on(ask: Callable[[], Any], found: list[Any]) -> None:
        is_last = False
        while not is_last:
            is_last = has_ended.wait(pause_s)
            try:
                found.append(ask())
            except Exception as error:  # noqa: BLE001
                found.append(error)

    threads = [
        threading.Thread(target=ask_on, args=each) for each in zip(asks, answers, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
