"""A process that ``serve`` starts beside tritonserver, restarts when it dies, and ends.

What it does is a process of its own so that a bug or a lack of memory there affects neither Triton
nor its supervisor. It writes a line to stdout when it listens, stops at SIGTERM after what is in
flight, and ends at once when its stdin closes: then whoever started it is gone. Knows no HTTP.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from generator.errors import ServerError
from generator.server.restart_policy import RestartPolicy, Restarts

_START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0  # after Triton has ended, nothing is left to wait for


class ChildProcess:
    """One process; ``name`` is what it is in messages, such as ``the OpenAI API``."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Callable[[], Mapping[str, str]],
        policy: RestartPolicy | None = None,
    ) -> None:
        self.name = name
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None
        self._restarts = Restarts(policy or RestartPolicy())
        self._start_at_s: float | None = None  # where it has died
        self._why_not_up = ""

    def start(self) -> None:
        """Starts it and waits until it listens. Raises ServerError."""
        self.begin_start()
        self.wait_until_it_listens()

    def begin_start(self) -> None:
        """Starts it without waiting."""
        self._process = subprocess.Popen(
            self._command,
            env=dict(self._environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is for us
        )

    def wait_until_it_listens(self) -> None:
        """Raises ServerError where it ends before, or takes too long."""
        if self._process is None or not _first_line(self._process, _START_TIMEOUT_S):
            self.kill()
            raise ServerError(f"{self.name} did not start (see above)")
        self._restarts.lives()

    @property
    def why_not_up(self) -> str:
        """Why nobody listens at its port, "" where somebody does."""
        return self._why_not_up

    def revive(self) -> str | None:
        """Restarts it if it has died, after a longer delay each time, for ever. Returns a line to
        report, or None.
        """
        if self._start_at_s is not None:
            return self._start_again() if time.monotonic() >= self._start_at_s else None
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self.kill()
        return self._note_death(f"{self.name} died (exit code {code})")

    def _start_again(self) -> str:
        self._start_at_s = None
        try:
            self.start()
        except ServerError as error:
            return self._note_death(str(error))
        self._why_not_up = ""
        return f"{self.name} is back"

    def _note_death(self, what: str) -> str:
        delay_s = self._restarts.died()
        self._start_at_s = time.monotonic() + delay_s
        when = f" in {delay_s:g} s" if delay_s else ""
        self._why_not_up = f"{what} and is started again{when} ({self._restarts.count})"
        return self._why_not_up

    def begin_stop(self) -> None:
        """It accepts nothing more; what is in flight goes on while Triton answers it."""
        if self._process:
            self._process.terminate()

    def end(self, deadline: float) -> None:
        """Ends it, once Triton has ended: waits for its last bytes, at most until ``deadline``, in
        seconds of ``time.monotonic``.
        """
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Ends it at once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


def _first_line(process: subprocess.Popen[str], timeout_s: float) -> str:
    """What it says first; "" where it ends without, or takes too long."""
    watch = threading.Timer(timeout_s, process.kill)
    watch.start()
    try:
        return process.stdout.readline() if process.stdout else ""
    finally:
        watch.cancel()
