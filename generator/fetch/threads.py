"""Runs many network-bound actions at once, and stops all of them on Ctrl-C."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")

_TICK_S = 0.1
_STOP_WITHIN_S = 2.0


def run_all(
    items: Iterable[Item],
    action: Callable[[Item], None],
    num_workers: int,
    stop: threading.Event,
) -> None:
    """Calls ``action`` for every item, on several threads; ``action`` handles its own failures. An
    interrupt sets ``stop``; threads that have not ended two seconds later are abandoned.
    """
    waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    num_threads = min(num_workers, waiting.qsize())
    escaped: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                action(waiting.get_nowait())
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001, a bug of ours: raised below
            escaped.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(num_threads)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_TICK_S)
    except BaseException:
        stop.set()
        deadline = time.monotonic() + _STOP_WITHIN_S
        for thread in threads:
            if (
                thread.is_alive()
            ):  # an interrupt may have prevented a thread's start; it can't be joined
                thread.join(max(0.0, deadline - time.monotonic()))
        raise
    if escaped:
        raise escaped[0]
