"""Requests that are on their way while others are asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.triton import Answer, post

PATIENCE_S = 120.0


class Beside:
    """Asks, each from a thread of its own; ``answers`` are in the order in which they came."""

    def __init__(self, *asks: Callable[[], Answer]) -> None:
        self.answers: list[Answer] = []
        self._threads = [threading.Thread(target=self._ask, args=(ask,)) for ask in asks]
        for thread in self._threads:
            thread.start()

    @property
    def is_going_on(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def wait(self) -> None:
        """Until all are answered."""
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self, ask: Callable[[], Answer]) -> None:
        self.answers.append(ask())


def sent(url: str, *bodies: dict[str, Any]) -> Beside:
    """Sends bodies to one address."""
    return Beside(*(partial(post, url, body, PATIENCE_S) for body in bodies))
