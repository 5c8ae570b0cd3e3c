"""Restarts a tritonserver that died, after a longer delay each time.

For ever once it has served, for what ends it then may come from clients; one that has never served
is given up.
"""

from __future__ import annotations

from collections.abc import Callable

from generator.errors import ServerError
from hf_triton.serving.supervision.messages import say
from hf_triton.tritonserver.process import TritonServer
from hf_triton.tritonserver.restart_policy import RestartPolicy, Restarts, times


class ServerRestarts:
    """Restarts one server with the same ports, key and repository. ``tell`` is told why it is not
    up; ``wait`` waits some seconds.
    """

    def __init__(
        self,
        server: TritonServer,
        policy: RestartPolicy,
        tell: Callable[[str], None],
        wait: Callable[[float], None],
    ) -> None:
        self._server, self._tell, self._wait_s = server, tell, wait
        self._restarts = Restarts(policy)
        self._has_served = False

    def serves(self) -> None:
        """The server has loaded all models that can be loaded."""
        self._has_served = True
        self._restarts.lives()

    def restart(self, words: str) -> None:
        """Clears away what the server left behind and starts it, with no model yet; ``words`` say
        how it ended. Raises ServerError where it ends too often before it has ever served.
        """
        while True:
            self._server.kill()
            self._wait(words)
            try:
                self._server.start()
                return
            except ServerError as error:
                words = str(error)
            except OSError as error:  # the machine lacks memory, processes, file descriptors
                words = f"tritonserver did not start: {error.strerror or error}"

    def _wait(self, words: str) -> None:
        delay_s = self._restarts.died() if self._has_served else self._restarts.failed()
        if delay_s is None:
            tried = times(self._restarts.num_failed, "time")
            raise ServerError(
                f"{words}\ngiven up: tritonserver died {tried} in a row before it had loaded all "
                "models. Correct what the lines above report, and start serve again"
            )
        when = f" in {delay_s:g} s" if delay_s else ""
        again = f"is started again{when} ({self._restarts.count})"
        say(words)
        say(f"tritonserver {again}")
        self._tell(f"{words.partition(';')[0]} and {again}")
        self._wait_s(delay_s)
