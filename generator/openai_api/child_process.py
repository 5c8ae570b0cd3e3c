"""Starts, watches and stops the OpenAI API of ``hf-triton serve``, which is a child process.

A process of its own, so that a bug or a lack of memory there affects neither Triton nor its
supervisor, and many streams don't delay the reading of Triton's log. Knows no HTTP and no gRPC.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generator.errors import ServerError
from generator.openai_api.key import VARIABLE
from generator.openai_api.triton.catalog import ALL_TASKS, COMPLETION_TASKS, EMBEDDING_TASKS
from generator.render import model_config
from generator.server.listen import Listen
from generator.server.restart_policy import RestartPolicy, Restarts
from generator.spec.triton_models import TASK_PARAMETER

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0  # after Triton has ended, nothing is left to wait for


class OpenAiProcess:
    """The translator of one server."""

    def __init__(
        self, listen: Listen, key: str | None, policy: RestartPolicy | None = None
    ) -> None:
        self._listen = listen
        self._key = key
        self._process: subprocess.Popen[str] | None = None
        self._restarts = Restarts(policy or RestartPolicy())
        self._start_at_s: float | None = None  # where it has died
        self._why_not_up = ""

    def start(self) -> None:
        """Starts it and waits until it listens; Triton is up. Raises ServerError."""
        listen = self._listen
        address = listen.address(listen.grpc_port)
        environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
        if self._key is not None:
            environment[VARIABLE] = self._key
        self._process = subprocess.Popen(
            [*_COMMAND, listen.host, str(listen.openai_port), address],
            env=environment,
            stdin=subprocess.PIPE,  # closes with this process, and the child ends
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is for us
        )
        if not _first_line(self._process, _START_TIMEOUT_S):
            self.kill()
            raise ServerError("the OpenAI API did not start (see above)")
        self._restarts.lives()

    @property
    def why_not_up(self) -> str:
        """Why nobody listens at its port, "" where somebody does."""
        return self._why_not_up

    def revive(self) -> str | None:
        """Restarts it if it has died, after a longer delay each time, until it dies too often.
        Returns a line to report, or None.
        """
        if self._start_at_s is not None:
            return self._start_again() if time.monotonic() >= self._start_at_s else None
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self.kill()
        return self._note_death(f"the OpenAI API died (exit code {code})")

    def _start_again(self) -> str:
        self._start_at_s = None
        try:
            self.start()
        except ServerError as error:
            return self._note_death(str(error))
        self._why_not_up = ""
        return "the OpenAI API is back"

    def _note_death(self, what: str) -> str:
        delay_s = self._restarts.died()
        if delay_s is None:
            num = self._restarts.num_recent
            self._why_not_up = f"{what} {num} time{'s' * (num != 1)} and is off"
            return f"{self._why_not_up}; start serve again"
        self._start_at_s = time.monotonic() + delay_s
        when = f" in {delay_s:g} s" if delay_s else ""
        self._why_not_up = f"{what} and is started again{when}"
        return self._why_not_up

    def begin_stop(self) -> None:
        """It accepts nothing more; what is in flight goes on while Triton answers it."""
        if self._process:
            self._process.terminate()

    def end(self) -> None:
        """Ends it, once Triton has ended: waits a moment for the last bytes."""
        if self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
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

    def curl_lines(self, model: str, config_file: Path) -> list[str]:
        """A request that works, none where the model of this config.pbtxt is not for this API."""
        config: Any = model_config.parse(config_file.read_text(encoding="utf-8"))
        task = model_config.parameters(config).get(TASK_PARAMETER)
        if task not in ALL_TASKS:
            return []
        address = self._listen.address(self._listen.openai_port)
        return [curl_line(address, model, self._key, task)]


def curl_line(address: str, model: str, key: str | None, task: str = COMPLETION_TASKS[0]) -> str:
    """A completion from ``model``, or an embedding where that is its task; with a key, from the
    environment that has it.
    """
    header = f' -H "Authorization: Bearer ${VARIABLE}"' if key is not None else ""
    embeds = task in EMBEDDING_TASKS
    path, field = ("embeddings", "input") if embeds else ("completions", "prompt")
    body = json.dumps({"model": model, field: "I am going"})
    return f"curl http://{address}/v1/{path}{header} -d '{body}'"


_COMMAND: Sequence[str] = (sys.executable, "-m", "generator.openai_api")


def _first_line(process: subprocess.Popen[str], timeout_s: float) -> str:
    """What it says first; "" where it ends without, or takes too long."""
    watch = threading.Timer(timeout_s, process.kill)
    watch.start()
    try:
        return process.stdout.readline() if process.stdout else ""
    finally:
        watch.cancel()
