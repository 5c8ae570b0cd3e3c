"""A process that ``serve`` starts beside tritonserver, restarts when it dies, and ends.

What it does is a process of its own so that a bug or a lack of memory there affects neither Triton
nor its supervisor. It writes a line to stdout when it listens, and from then on an empty one a
second. It stops at SIGTERM after what is in flight. Its parent writes lines about the models to its
stdin, and reads lines of JSON from its stdout; it ends at once when its stdin closes, because its
parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from generator.errors import EXIT_OK, ServerError
from hf_triton.tritonserver.listen import HeldPorts
from hf_triton.tritonserver.restart_policy import Restarts

_SETTINGS = "HF_TRITON_CHILD_SETTINGS"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0  # after Triton has ended, nothing is left to wait for
_BEAT_EVERY_S, _BEAT = 1.0, b"\n"
_MAX_UNWRITTEN = 1 << 16

Settings = TypeVar("Settings")


class ChildProcess:
    """One process; ``name`` is what it is in messages, such as ``the OpenAI API``. The ``ports``
    that it listens on stay open while it is started again. ``why_not_up`` says why nobody listens
    at its ports, "" where it does.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Callable[[], Mapping[str, str]],
        ports: HeldPorts,
    ) -> None:
        self.name, self._ports = name, ports
        self.why_not_up = ""
        self.command, self._environment = command, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts = Restarts()
        self._start_at_s: float | None = None  # where it has died
        self._is_starting = False
        self.heard_at_s = 0.0
        self._line = self._unwritten = b""
        self._is_mid_line = False
        self._unread = self._last_line = b""

    def begin_start(self) -> None:
        """Starts it without waiting. Raises ServerError where its ports can't be listened on."""
        ports = self._ports
        ports.open()
        self._process = subprocess.Popen(
            self.command,
            env={**self._environment(), **ports.environment()},
            pass_fds=ports.descriptors(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # the terminal's Ctrl-C is for us
        )
        self.heard_at_s, self._is_starting = time.monotonic(), True
        if self._process.stdin:
            os.set_blocking(self._process.stdin.fileno(), False)
        self._unwritten, self._is_mid_line = self._line, False
        self._unread = self._last_line = b""
        self._write_rest()

    def tell(self, line: bytes) -> None:
        """Sends it a line about the models; a new process gets the last line when it starts."""
        if line != self._line:
            self._line = line
            self._unwritten = b"\n" * self._is_mid_line + line  # the line before is dropped
        self._write_rest()

    def _write_rest(self) -> None:
        if self._unwritten and self._process and self._process.stdin:
            with contextlib.suppress(OSError):  # it reads slowly, or has died
                num_written = os.write(self._process.stdin.fileno(), self._unwritten)
                self._is_mid_line = num_written < len(self._unwritten)
                self._unwritten = self._unwritten[num_written:]

    def wait_until_it_listens(self) -> None:
        """Raises ServerError where it ends before, or takes too long."""
        if not self._read(START_TIMEOUT_S):
            self.kill()
            raise ServerError(f"{self.name} did not start (see above)")
        self._note_listening()

    def _note_listening(self) -> None:
        self._is_starting, self.why_not_up = False, ""
        self._restarts.lives()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def silent_s(self) -> float:
        """Seconds since its last sign of life; 0 before the first."""
        if self._process is None or self._is_starting:
            return 0.0
        self._read()
        return time.monotonic() - self.heard_at_s

    @property
    def said(self) -> bytes:
        """The last line of JSON that it has sent, b"" before the first."""
        if not self._is_starting:
            self._read()
        return self._last_line

    def _read(self, timeout_s: float = 0.0) -> bool:
        """Reads what it has written to stdout; whether that is anything within ``timeout_s``."""
        stdout = self._process.stdout if self._process else None
        if stdout is None:
            return False
        ready = select.poll()
        ready.register(stdout, select.POLLIN)
        if not ready.poll(timeout_s * 1000):
            return False
        data = stdout.read(1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                self._last_line = line
        if data:
            self.heard_at_s = time.monotonic()
        return data != b""

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def revive(self) -> str | None:
        """Restarts it if it has died, after a longer delay each time, for ever. Returns a line to
        report, or None.
        """
        process = self._process
        if self._start_at_s is not None:
            if time.monotonic() >= self._start_at_s:
                self.begin_start()
                self._start_at_s = None
        elif process and process.poll() is not None:
            died = f"died (exit code {process.returncode})"
            return self.end_now("did not start (see above)" if self._is_starting else died)
        elif process and self._is_starting:
            if self._read():
                self._note_listening()
                return f"{self.name} is back"
            if time.monotonic() - self.heard_at_s > START_TIMEOUT_S:
                return self.end_now("did not start in time")
        return None

    def end_now(self, why: str) -> str:
        """Ends it at once, to be started again by ``revive``. Returns a line to report."""
        self._end_process()
        delay_s = self._restarts.died()
        self._start_at_s = time.monotonic() + delay_s
        self.why_not_up = f"{self.name} {why} and is started {self._restarts.again(delay_s)}"
        return self.why_not_up

    def begin_stop(self) -> None:
        """Has it accept no more connections; requests in flight go on while Triton answers."""
        self._ports.close()
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
        self._ports.close()
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout)):
                stream.close()


def environment_for(settings: object) -> dict[str, str]:
    """The environment of a child with ``settings``: only its user can read it, and keys are in
    them.
    """
    text = msgspec.json.encode(settings, enc_hook=str).decode()
    return {**os.environ, _SETTINGS: text}


def settings_as(kind: type[Settings]) -> Settings:
    """In the child: reads the settings of ``environment_for`` and removes them from os.environ."""
    text = os.environ.pop(_SETTINGS)
    return msgspec.json.decode(text, type=kind, dec_hook=lambda kind, value: kind(value))


class Parent:
    """In the child, on its event loop: reads its parent's lines. SIGTERM sets ``stop``."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self._take: Callable[[bytes], None] | None = None
        self._line: bytes | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()

    def follow(self, take: Callable[[bytes], None]) -> None:
        """``take`` is called with the last line, and each that comes."""
        self._take = take
        if self._line is not None:
            take(self._line)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        rest = b""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            while data := os.read(0, 1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    loop.call_soon_threadsafe(self._note, line)
            os._exit(EXIT_OK)  # its parent is gone

    def _note(self, line: bytes) -> None:
        self._line = line
        if self._take:
            self._take(line)


def tell_ready() -> None:
    """In the child, on its event loop: tells the parent that it listens, then sends a heartbeat a
    second for as long as the loop runs.
    """
    print("ready", flush=True)
    os.set_blocking(sys.stdout.fileno(), False)  # nobody may read for a while
    _beat()


def _beat() -> None:
    _write(_BEAT)
    asyncio.get_running_loop().call_later(_BEAT_EVERY_S, _beat)


_unwritten = bytearray()


def say_line(line: bytes) -> None:
    """In the child: sends its parent a line of JSON; dropped once much is unread."""
    if len(_unwritten) < _MAX_UNWRITTEN:
        _write(line + b"\n")


def _write(data: bytes) -> None:
    _unwritten.extend(data)
    with contextlib.suppress(OSError):  # the rest is written with what comes next
        del _unwritten[: os.write(sys.stdout.fileno(), _unwritten)]
