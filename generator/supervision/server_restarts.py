"""Restarts a tritonserver that died, after a longer delay each time, until it dies too often."""

from __future__ import annotations

import time

from generator.errors import ServerError
from generator.server.process import TritonServer
from generator.server.restart_policy import RestartPolicy, Restarts
from generator.supervision.messages import say


class ServerRestarts:
    """Restarts one server with the same ports, key and repository."""

    def __init__(self, server: TritonServer, policy: RestartPolicy) -> None:
        self._server = server
        self._policy = policy
        self._restarts = Restarts(policy)

    def lives(self) -> None:
        """The server is up."""
        self._restarts.lives()

    def restart(self) -> None:
        """Clears away what the dead server left behind and starts it, with no model yet. Raises
        ServerError, with its last lines, where it dies too often.
        """
        words = self._server.exit_message("tritonserver died")
        while True:
            self._server.kill()
            self._wait(words)
            try:
                self._server.start()
                self.lives()
                return
            except ServerError as error:
                words = str(error)

    def _wait(self, words: str) -> None:
        delay_s = self._restarts.died()
        num = self._restarts.num_recent
        if delay_s is None:
            often = f"{num} time{'s' * (num != 1)} within {self._policy.window_s / 60:g} minutes"
            raise ServerError(
                f"{words}\ngiven up: tritonserver died {often}. Correct what the lines above "
                "report, and start serve again"
            )
        when = f" in {delay_s:g} s" if delay_s else ""
        say(words)
        say(f"tritonserver is started again{when} ({num} of at most {self._policy.max_restarts})")
        time.sleep(delay_s)
