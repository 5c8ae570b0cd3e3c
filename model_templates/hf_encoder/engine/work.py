"""What an engine is given to compute, and that each is answered once, whoever answers it.

Knows neither models nor Triton.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from hf_runtime import log
from hf_runtime.errors import place
from hf_runtime.request.request_ids import labelled

from ..texts.encoding import Encoding

Array = npt.NDArray[Any]


@dataclass(eq=False)
class Work:
    """A request's encodings, and where their results go: ``done`` is called exactly once, with an
    array for each encoding or with an error; on the engine's thread, except where that is stuck.
    """

    encodings: Sequence[Encoding]
    done: Callable[[list[Array] | Exception], None]
    is_cancelled: Callable[[], bool]
    request_id: str = ""
    submitted_s: float = field(default_factory=time.monotonic)
    started: bool = False
    results: dict[int, Array] = field(default_factory=dict)


class Unfinished:
    """The work that has not been answered; may be used from any thread."""

    def __init__(self) -> None:
        self._works: set[Work] = set()
        self._lock = threading.Lock()

    def __contains__(self, work: Work) -> bool:
        return work in self._works

    def add(self, work: Work) -> None:
        """It is to be answered."""
        with self._lock:
            self._works.add(work)

    def finish(self, work: Work, result: list[Array] | Exception) -> None:
        """Calls ``done`` unless that has been; what it raises is not the others' end."""
        with self._lock:
            if work not in self._works:
                return
            self._works.remove(work)
        try:
            work.done(result)
        except Exception as error:
            text = f"a result could not be handed on: {place(error)}"
            log.error(labelled(work.request_id, text))

    def fail_all(self, error: Exception) -> None:
        """Answers all there is with this error."""
        with self._lock:
            works = list(self._works)
        for work in works:
            self.finish(work, error)
