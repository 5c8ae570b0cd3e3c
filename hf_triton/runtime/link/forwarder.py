"""Forwards requests to the engines of another Triton model, and watches them until they are
answered: a request whose caller has gone is cancelled there too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ..errors import RuntimeModelError
from ..request.cancellation import CancellationWatch
from ..request.responder import Responder
from .engine_pool import EnginePool
from .link_request import LinkRequest
from .pending_request import PendingRequest


class Forwarder:
    """The requests that one process forwards to one Triton model. ``close`` ends its threads."""

    def __init__(self, engines: EnginePool) -> None:
        self.engines = engines
        self._numbers = itertools.count()
        self._watch = CancellationWatch(self._cancel_departed)
        engines.start(self._forward_again)

    @property
    def num_waiting(self) -> int:
        """The number of requests that are not answered yet."""
        return sum(len(client.pending) for client in self.engines.clients())

    def forward(self, request: LinkRequest, responder: Responder) -> None:
        """Forwards a request; ``responder`` answers it, whatever happens to the engine.

        Raises:
            RequestError: it is too large.
            UnavailableError: there is no engine.
        """
        self.engines.forward(self._pending(request, responder, None))
        self._watch.wake()

    def try_forward(
        self,
        request: LinkRequest,
        responder: Responder,
        on_lost: Callable[[RuntimeModelError], None],
    ) -> bool:
        """Forwards a request if an engine is connected, else returns False. ``on_lost`` is called
        with the reason if the engine is lost before it has answered. Raises RequestError: the
        request is too large.
        """
        taken = self.engines.try_forward(self._pending(request, responder, on_lost))
        self._watch.wake()
        return taken

    def close(self) -> None:
        """Ends every thread; pending requests go to their ``on_lost``, or get UNAVAILABLE."""
        self._watch.close()
        self.engines.close()

    def _pending(
        self,
        request: LinkRequest,
        responder: Responder,
        on_lost: Callable[[RuntimeModelError], None] | None,
    ) -> PendingRequest:
        number = next(self._numbers)
        data = request.encode(number)
        return PendingRequest(number, data, request.outputs, responder, on_lost)

    def _forward_again(self, pending: PendingRequest, error: RuntimeModelError) -> None:
        """Forwards a request that an engine gave back, because it is being unloaded, to another
        engine.

        There is no limit on how often: a model may be reloaded repeatedly meanwhile. It ends
        because an engine that gave a request back gets no other.
        """
        try:
            self.engines.forward(pending)
            self._watch.wake()
        except RuntimeModelError:  # there is no other engine
            pending.on_engine_lost(error)

    def _cancel_departed(self) -> int:
        """Cancels the requests of callers that have gone; returns how many are pending."""
        num_pending = 0
        for client in self.engines.clients():
            for pending in list(client.pending.values()):
                num_pending += 1
                if pending.is_cancelled():
                    client.cancel(pending)
        return num_pending
