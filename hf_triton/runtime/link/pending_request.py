"""A forwarded request that waits for the engine's answer, and is answered exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from .. import log
from ..errors import RuntimeModelError, place
from ..request.request_ids import labelled
from ..request.responder import Responder
from .frames import Array


class EngineAnswerError(RuntimeModelError):
    """The error that the engine answered with, with the engine's Triton status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class PendingRequest:
    """One request, until an engine has answered it: the first to do so, if it is sent again."""

    def __init__(
        self,
        number: int,
        data: bytes,
        requested_outputs: Iterable[str],
        responder: Responder,
        on_lost: Callable[[RuntimeModelError], None] | None = None,
    ) -> None:
        """``data`` is the frame for the engine; ``requested_outputs`` are those of the request.

        ``on_lost`` is called instead of sending an error if the engine is lost before it has
        answered.
        """
        self.number = number
        self.data = data
        self.has_begun = False
        self._requested_outputs = frozenset(requested_outputs)
        self._responder = responder
        self._on_lost = on_lost or responder.fail

    def answer(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        """Sends the requested outputs only: any other could kill the stub (Triton drops it without
        holding Python's GIL).
        """
        self.has_begun = True
        try:
            wanted = {
                name: array for name, array in outputs.items() if name in self._requested_outputs
            }
            self._responder.send(wanted, final=final)
        except Exception as error:
            text = f"an answer was not sent: {place(error)}"
            log.error(labelled(self._responder.request_id, text))
            self._responder.fail(error)

    def fail(self, error: RuntimeModelError) -> None:
        self._responder.fail(error)

    def on_engine_lost(self, error: RuntimeModelError) -> None:
        """Sends an error if an answer has begun, else calls ``on_lost``."""
        if self.has_begun:
            self._responder.fail(error)
        else:
            self._on_lost(error)

    def is_cancelled(self) -> bool:
        """Whether the caller has gone."""
        return self._responder.is_cancelled()
