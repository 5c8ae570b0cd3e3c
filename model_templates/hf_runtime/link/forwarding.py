"""Passes requests on to the engines of another model, and follows them until they are answered."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ..errors import RuntimeModelError
from ..request.cancellation import CancellationWatch
from ..request.responder import Responder
from .engines import Engines
from .link_request import LinkRequest
from .waiting import EngineAnswerError, Waiting


class Forwarder:
    """The requests that one process passes on to one model. ``close`` ends its threads."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._numbers = itertools.count()
        self._watch = CancellationWatch(self._ask_all)
        engines.start(self._pass_on_again)

    @property
    def num_waiting(self) -> int:
        """Requests that are not answered yet."""
        return sum(len(client.waiting) for client in self.engines.clients())

    def pass_on(self, request: LinkRequest, responder: Responder) -> None:
        """Passes a request on; ``responder`` answers it, whatever happens to the engine.

        Raises:
            RequestError: it is too large.
            UnavailableError: there is no engine.
        """
        self.engines.pass_on(self._waiting(request, responder, None))
        self._watch.wake()

    def offer(
        self,
        request: LinkRequest,
        responder: Responder,
        give_back: Callable[[RuntimeModelError], None],
    ) -> bool:
        """The same, if an engine is connected, else False. ``give_back`` takes the request where
        the engine is lost before it has answered. Raises RequestError: it is too large.
        """
        taken = self.engines.offer(self._waiting(request, responder, give_back))
        self._watch.wake()
        return taken

    def close(self) -> None:
        """Ends every thread; requests that wait are given back, or answered with UNAVAILABLE."""
        self._watch.close()
        self.engines.close()

    def _waiting(
        self,
        request: LinkRequest,
        responder: Responder,
        give_back: Callable[[RuntimeModelError], None] | None,
    ) -> Waiting:
        number = next(self._numbers)
        data = request.encode(number)
        return Waiting(number, data, request.outputs, responder, give_back)

    def _pass_on_again(self, waiting: Waiting, error: EngineAnswerError) -> None:
        """To another engine, where there is one, after one gave it back because it is unloaded.

        As often as that happens, for a model may change again and again while it is answered; an
        engine that has given one back gets none any more, so this ends.
        """
        try:
            self.engines.pass_on(waiting)
            self._watch.wake()
        except RuntimeModelError:  # there is no other
            waiting.lose(error)

    def _ask_all(self) -> int:
        """Cancels the requests of callers that have gone; returns how many wait."""
        num_waiting = 0
        for client in self.engines.clients():
            for waiting in list(client.waiting.values()):
                num_waiting += 1
                if waiting.is_cancelled():
                    client.cancel(waiting)
        return num_waiting
