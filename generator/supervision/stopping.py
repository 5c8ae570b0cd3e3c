"""Tells when a server that is being stopped waits for what never comes.

Triton 24.10 stops accepting, and then waits for every connection to be closed: those of clients
that keep them open without a request, and those of requests that a process took with it when it
died, which are never answered.
"""

from __future__ import annotations

from generator.server_listen import Listen
from generator.supervision.connections import connections_to
from generator.supervision.idleness import Idleness

_IDLE_S = 5.0


class Hopelessness:
    """Of one server, from the moment on that it is asked to stop."""

    def __init__(self, listen: Listen, idleness: Idleness, has_deaths: bool) -> None:
        """``has_deaths``: whether processes of it have died, and requests with them."""
        self._listen, self._idleness, self._has_deaths = listen, idleness, has_deaths
        self.came = False

    def __call__(self) -> bool:
        """Whether nothing computes any more, and every request that can be answered is."""
        is_idle = self._idleness.seconds() > _IDLE_S
        self.came = is_idle and (self._has_deaths or self._is_quiet())
        return self.came

    def _is_quiet(self) -> bool:
        """Whether there are only HTTP connections on which the last word was the server's, a while
        ago. A gRPC connection does not show whether a request is under way.
        """
        try:
            over_http = connections_to(self._listen.http_port)
            over_grpc = connections_to(self._listen.grpc_port)
        except OSError:
            return False
        return not over_grpc and all(c.is_answered and c.sent_s > _IDLE_S for c in over_http)
