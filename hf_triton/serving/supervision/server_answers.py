"""Asks a tritonserver what it serves, and follows for how long it has not answered."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence

from generator.errors import ServerError
from hf_triton.tritonserver.http_api import ModelVersion, ServerApi
from hf_triton.tritonserver.model_state import Seen
from hf_triton.tritonserver.triton_texts import LOADING, READY

# Some of the server's threads may be kept busy by a load, and a question that lands on one waits.
_NOT_UP_AFTER_S = 5.0
_LACKED_HERE = (errno.EMFILE, errno.ENFILE)  # by this process itself


class ServerAnswers:
    def __init__(self, server: ServerApi, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self.server_started()

    def server_started(self) -> None:
        """The server was started again and is up."""
        self._answered_at_s = self._heard_at_s = self._clock()
        self.answered_last = True
        self.loading: frozenset[tuple[str, str]] = frozenset()  # when last told

    @property
    def is_up(self) -> bool:
        """True if it has said lately what it serves."""
        return self._clock() - self._answered_at_s < _NOT_UP_AFTER_S

    @property
    def silent_s(self) -> float:
        """Seconds since it last showed that it lives."""
        return self._clock() - self._heard_at_s

    def states(self) -> dict[str, Seen] | None:
        """The models that the server knows, or None if it does not answer. A server that did not
        answer last is asked first if it is live, which it can answer while it is busy.
        """
        try:
            if not self.answered_last and self._server.is_live():
                self._heard_at_s = self._clock()
            versions = self._server.index()
        except (OSError, ServerError) as error:
            if isinstance(error, ServerError) or error.errno in _LACKED_HERE:
                self._heard_at_s = self._clock()
            self.answered_last = False
            return None
        self._answered_at_s = self._heard_at_s = self._clock()
        self.answered_last = True
        loading = (entry for entry in versions if entry.state == LOADING)
        self.loading = frozenset((entry.model, entry.version) for entry in loading)
        return _states(versions)


def _states(versions: Sequence[ModelVersion]) -> dict[str, Seen]:
    """For each model whether a version is ready, or is being loaded, or why none is."""
    found: dict[str, Seen] = {}
    for entry in versions:
        reason = f"{entry.model} is {entry.state or 'not loaded'}"
        reason += f": {entry.reason}" if entry.reason else ""
        before = found.get(entry.model, Seen())
        is_ready = before.is_ready or entry.state == READY
        is_loading = before.is_loading or entry.state == LOADING
        found[entry.model] = Seen(is_ready, is_loading, "" if is_ready else reason)
    return found
