"""A request that waits for the engine's answer, and gets exactly one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hf_runtime import log
from hf_runtime.engine_link import Array
from hf_runtime.errors import RuntimeModelError, place
from hf_runtime.responder import Responder


class UnavailableError(RuntimeModelError):
    """No engine can answer at the moment."""

    status = "UNAVAILABLE"


class EngineAnswerError(RuntimeModelError):
    """The error that the engine answered with, under its own status."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Waiting:
    """One request. Its responder sends the first answer that it gets, and ignores all others."""

    def __init__(
        self, number: int, data: bytes, listed: Iterable[str], responder: Responder
    ) -> None:
        """``data`` is the frame for the engine, ``listed`` what the request asked for."""
        self.number = number
        self.data = data
        self.may_go_again = True
        self._listed = frozenset(listed)
        self._responder = responder

    def answer(self, outputs: Mapping[str, Array]) -> None:
        """Sends the outputs; never one that was not asked for, which could kill the stub."""
        try:
            wanted = {name: array for name, array in outputs.items() if name in self._listed}
            self._responder.send(wanted, final=True)
        except Exception as error:
            log.error(f"an answer was not sent: {place(error)}")
            self._responder.fail(error)

    def fail(self, error: Exception) -> None:
        """Sends an error."""
        self._responder.fail(error)

    def is_cancelled(self) -> bool:
        """Whether the caller has gone."""
        return self._responder.is_cancelled()
