"""A request that waits for another process's answer, and gets exactly one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .. import log
from ..errors import RuntimeModelError, place
from ..request.request_ids import labelled
from ..request.responder import Responder
from .protocol import Array


class UnavailableError(RuntimeModelError):
    """No engine can answer at the moment."""

    status = "UNAVAILABLE"


class EngineAnswerError(RuntimeModelError):
    """The error that the engine answered with, under its own status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Waiting:
    """One request. Its responder sends what the first engine answers that answers at all."""

    def __init__(
        self,
        number: int,
        data: bytes,
        listed: Iterable[str],
        responder: Responder,
        give_back: Callable[[RuntimeModelError], None] | None = None,
    ) -> None:
        """``data`` is the frame for the engine, ``listed`` what the request asked for.

        ``give_back`` takes the request where every engine was lost before any had answered; without
        it the caller gets the error.
        """
        self.number = number
        self.data = data
        self.has_begun = False
        self._listed = frozenset(listed)
        self._responder = responder
        self._give_back = give_back or responder.fail

    def answer(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        """Sends outputs; never one that was not asked for, which could kill the stub."""
        self.has_begun = True
        try:
            wanted = {name: array for name, array in outputs.items() if name in self._listed}
            self._responder.send(wanted, final=final)
        except Exception as error:
            text = f"an answer was not sent: {place(error)}"
            log.error(labelled(self._responder.request_id, text))
            self._responder.fail(error)

    def fail(self, error: RuntimeModelError) -> None:
        """Sends the engine's error."""
        self._responder.fail(error)

    def lose(self, error: RuntimeModelError) -> None:
        """No engine goes on with it: sends an error where an answer has begun."""
        if self.has_begun:
            self._responder.fail(error)
        else:
            self._give_back(error)

    def is_cancelled(self) -> bool:
        """Whether the caller has gone."""
        return self._responder.is_cancelled()
