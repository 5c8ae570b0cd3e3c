"""Starts a tritonserver on a model repository, loads models, and ends it without leftovers.

Knows nothing of models.yaml.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

from generator.errors import ServerError, UsageError
from generator.python_modules import ROOT_FOLDER
from hf_triton.runtime.request.request_parameters import CALLER, USES_VARIABLE
from hf_triton.runtime.request.request_parameters import VARIABLE as LEFT_CALLS_VARIABLE
from hf_triton.tritonserver import binary as server_binary
from hf_triton.tritonserver import guard as server_guard
from hf_triton.tritonserver.http_api import NUM_LOADERS, ServerApi
from hf_triton.tritonserver.listen import SHARED_MEMORY, Listen
from hf_triton.tritonserver.log import LogFilter, plain, secrets_of
from hf_triton.tritonserver.system_calls import signal_name, start_thread
from hf_triton.tritonserver.triton_texts import Loads

_START_TIMEOUT_S = 60.0
# Triton waits at most so long for requests in flight and for models to unload: ten models, each a
# Python process with torch, take half a minute on two busy cores.
_EXIT_TIMEOUT_S = 60
STOP_TIMEOUT_S = _EXIT_TIMEOUT_S + 5.0
_STOP_POLL_S = 0.25
_REAP_TIMEOUT_S = 2.0
_LAST_LINES_TIMEOUT_S = 3.0  # a process that left the group may hold the log open
_NUM_HTTP_THREADS = 8 + NUM_LOADERS  # 8 is Triton's default; a load keeps one to itself
# Triton puts paths into command lines for bash, unquoted; its Python can encode ASCII alone.
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
HEARTBEATS_VARIABLE = "HF_TRITON_HEARTBEATS"  # hf_triton/runtime/heartbeat.py
_SHORTEST = len("--http-r")  # Triton takes a flag's beginning for the whole
# The headers of a call that become parameters of it, and the flag's shortest beginning.
_FORWARDING, _SHORTEST_FORWARDING = "--grpc-header-forward-pattern", len("--grpc-he")
# tritonserver listens for the proxies alone; what stands for each flag towards callers.
_OF_SERVE = {
    **{f"--{kind}-address": "--host" for kind in ("http", "grpc", "metrics")},
    **{f"--{kind}-port": f"--{kind}-port before the --" for kind in ("http", "grpc", "metrics")},
    "--grpc-use-ssl": "tls in models.yaml's server: block",
    **dict.fromkeys(
        ("--http-restricted-api", "--grpc-restricted-protocol"),
        "--api-keys-file, and the admin key for the APIs that change a server",
    ),
}
_CALLER_PATTERN = f"(?i:^{CALLER}$)"


class TritonServer:
    """One tritonserver and its Python stubs, in a process group of their own.

    So the terminal's Ctrl-C does not reach them: only ``stop`` and ``kill`` end them, or the
    death of this process. Used as a context, it is started, and stopped at the end, or killed where
    an exception ends the block.
    """

    _process: subprocess.Popen[str]  # from ``start`` on
    _reader: threading.Thread | None

    def __init__(
        self,
        repository: Path,
        listen: Listen | None = None,
        *,
        arguments: Sequence[str] = (),
        verbose: bool = False,
        write_log: Callable[[str], None] | None = None,
    ) -> None:
        self.repository = repository
        self.listen = listen or Listen()
        self.arguments = arguments
        self.verbose = verbose
        self.write_log = write_log or _write_to_stderr
        self.api = ServerApi(self.listen)
        self._log, self.loads = LogFilter(), Loads()
        self._secrets = secrets_of(os.environ)
        self.shared_memory_prefix = self.listen.shared_memory
        self._is_cleared_away = False  # and its number may be another process' by now

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    @property
    def pid(self) -> int:
        """The process group of tritonserver and its stubs, led by their guard."""
        return self._process.pid

    @property
    def heartbeats(self) -> str:
        """The beginning of the paths of the models' heartbeats; a process' number follows."""
        return f"{SHARED_MEMORY / self.shared_memory_prefix}beat_"

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Starts the server, with no model yet, and waits until it answers. Raises ServerError."""
        self.listen.check_triton()
        self._log, self.loads = LogFilter(), Loads()  # lines are this server's
        binary = server_binary.find(self.listen.sockets)
        left = (self.shared_memory_prefix, self.listen.sockets)
        guard = [sys.executable, "-IS", server_guard.__file__, *left]
        self._process = subprocess.Popen(
            [*guard, *binary.command, *self._flags()],
            env={
                **binary.full_environment(),
                HEARTBEATS_VARIABLE: self.heartbeats,
                LEFT_CALLS_VARIABLE: self.listen.abandoned_requests,
                USES_VARIABLE: self.listen.uses_pipe,
            },
            stdin=subprocess.PIPE,  # closes with this process, and the guard sees it
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            cwd=ROOT_FOLDER,  # its stubs import from there first
        )
        self._is_cleared_away, self._reader = False, None
        try:
            self._reader = start_thread(self._read_log, self._process)
            self._wait_live(time.monotonic() + timeout_s)
        except BaseException:
            self.kill()
            raise

    def _flags(self) -> list[str]:
        return [
            f"--model-repository={self._repository_path()}",
            "--model-control-mode=explicit",
            # Without it every model is first imported in a process that only asks for its config:
            # torch twice, and a process that dies while loading hangs the load for ever (24.10).
            "--disable-auto-complete-config",
            f"--exit-timeout-secs={_EXIT_TIMEOUT_S}",
            *self.listen.triton_flags(),
            f"--http-thread-count={_NUM_HTTP_THREADS}",
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}",
            *forwarding(self.arguments),
        ]

    def _repository_path(self) -> Path:
        """A path of the repository that Triton can take: where its own has other letters, a link
        beside the sockets.
        """
        path = self.repository.resolve()
        if _PLAIN_PATH.fullmatch(str(path)) or not self.listen.sockets:
            return path
        link = Path(self.listen.sockets, "repository")
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        return link

    def _wait_live(self, deadline: float) -> None:
        while True:
            if self.exit_code() is not None:
                raise ServerError(self.exit_message("tritonserver did not start"))
            with contextlib.suppress(OSError):
                if self.api.is_live():
                    return
            if time.monotonic() > deadline:
                raise ServerError(self.exit_message("tritonserver does not answer"))
            time.sleep(0.02)

    def exit_code(self) -> int | None:
        """Negative for a signal; None where it still runs."""
        return self._process.poll()

    def keep_memory_private(self) -> None:
        """Makes the shared memory that prompts pass through its owner's alone: Triton lets all
        users read it. Our models do so themselves, before the first request; others do not.
        """
        for region in SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"):
            with contextlib.suppress(OSError):  # it has gone
                region.chmod(0o600)

    def log_tail(self) -> list[str]:
        """The last lines of its log that are worth a look, oldest first."""
        return list(self._log.tail)

    def exit_message(self, what: str) -> str:
        code, how = self.exit_code(), ""
        if code is not None:
            self._kill_group()  # stubs that compute outlive a killed guard, and hold the log open
            self._read_last_lines()
            how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
            how = f" ({how})"
        lines = "".join(f"\n    {line}" for line in self.log_tail())
        return f"{what}{how}{'; its last lines:' if lines else ''}{lines}"

    def stop(self, is_stuck: Callable[[], bool] = lambda: False) -> int:
        """Ends the server after the requests in flight; kills it after a timeout, or as soon as
        ``is_stuck`` returns True. Returns the exit code, 0 after a graceful stop.
        """
        self._process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.exit_code() is None and time.monotonic() < deadline and not is_stuck():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_POLL_S)
        return self.kill()

    def kill(self) -> int:
        """Ends the server and its stubs at once, clears away what they leave, returns its code."""
        self._kill_group()
        code = self._process.wait()
        _reap_group(self.pid)
        self._read_last_lines()
        if self._process.stdin:
            self._process.stdin.close()
        for region in SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"):
            if not str(region).startswith(self.listen.abandoned_requests):  # unfinished calls
                region.unlink(missing_ok=True)
        listen = self.listen
        if listen.sockets:  # the next server would find them in use
            for path in (listen.http_socket, listen.grpc_socket, listen.metrics_socket):
                Path(path).unlink(missing_ok=True)
        self._is_cleared_away = True
        return code

    def _kill_group(self) -> None:
        if not self._is_cleared_away:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read_last_lines(self) -> None:
        """They may still be on their way."""
        if self._reader:
            self._reader.join(_LAST_LINES_TIMEOUT_S)

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        with cast(IO[str], process.stdout) as pipe:  # only closed here, where it is read
            for line in pipe:
                text = plain(line.rstrip("\n"), self._secrets)
                self.loads.follow(text)
                shown = self._log.feed(text)
                self._write([text] if self.verbose else shown)
        self._write([] if self.verbose else self._log.end())

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            with contextlib.suppress(OSError):  # nobody reads it; the server must not block
                self.write_log(line)


def forwarding(arguments: Sequence[str]) -> list[str]:
    """The user's own arguments for tritonserver, with the one by which a gRPC call's caller reaches
    its model: Triton takes one pattern, so a user's own gets an alternative.
    """
    found = [f"{_FORWARDING}={_CALLER_PATTERN}"]
    for argument in arguments:  # the last one of a flag counts
        flag, _, pattern = argument.partition("=")
        if _FORWARDING.startswith(flag) and len(flag) >= _SHORTEST_FORWARDING:
            either = f"(?:{pattern})|{_CALLER_PATTERN}" if pattern else _CALLER_PATTERN
            argument = f"{flag}={either}"
        found.append(argument)
    return found


def refuse_clashes(arguments: Sequence[str]) -> None:
    """Raises UsageError where the user's own arguments for tritonserver move the sockets behind the
    proxies, or close APIs that ``serve`` itself asks.
    """
    for argument in arguments:
        flag = argument.partition("=")[0]  # the rest may hold a key
        for name, instead in _OF_SERVE.items():
            if len(flag) >= _SHORTEST and (name.startswith(flag) or flag.startswith(name)):
                raise UsageError(f"{flag}: leave it out, and use {instead}")


def _reap_group(group: int) -> None:
    """Reaps orphans that became our children: in a container, as process 1, nobody else does, and
    they would stay zombies for ever.
    """
    deadline = time.monotonic() + _REAP_TIMEOUT_S
    with contextlib.suppress(ChildProcessError):  # there are none left
        while time.monotonic() < deadline:
            pid, _ = os.waitpid(-group, os.WNOHANG)
            if not pid:
                time.sleep(0.01)


def _write_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")  # in one piece: other threads write too
    sys.stderr.flush()
