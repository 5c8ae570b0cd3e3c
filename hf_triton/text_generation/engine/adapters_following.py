"""Follows ``adapters.json`` while the model serves: what it names is read here and served from the
engine's next step on. Nothing of a list that can't be served is; the one before goes on.

Each process says what it has read in a file of its own, for whoever changes the list
(hf_triton/tritonserver/adapters.py). The file is locked while the process runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import RuntimeModelError, place, reason
from hf_triton.runtime.weights.served_model import ServedModel, parse_adapters

_LOOK_EVERY_S = 0.1


class AdaptersFollower:
    """Follows the list of one instance, until its engine stops. ``reader`` has ``read``, from
    adapters to what the engine's ``change_adapters`` takes; both raise LoadError. ``engine`` also
    has ``forget_removed_adapters``, which frees those that no request needs any more.
    """

    def __init__(self, served: ServedModel, reader: Any, engine: Any) -> None:
        assert served.adapters_file is not None
        self._file, self._name = served.adapters_file, served.name
        self._adapters = served.adapters
        self._reader, self._engine = reader, engine
        self._seen = b""
        version = self._file.parent.name
        self._status = _Status(served.cache_dir / "adapters", f"{self._name}-{version}-")

    def start(self) -> None:
        """Starts the thread that follows it."""
        threading.Thread(target=self._follow, name="adapters", daemon=True).start()

    def _follow(self) -> None:
        torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
        with self._status:
            while self._engine.thread.stop_at_s is None:
                try:
                    self._look()
                except Exception as error:
                    log.error(f"{self._name}: {self._file.name}: {place(error)}")
                time.sleep(_LOOK_EVERY_S)

    def _look(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the version is taken away
            content = self._file.read_bytes()
            if content == self._seen:
                self._engine.forget_removed_adapters()
                return
            self._seen = content
            self._status.say(content, self._serve(content))

    def _serve(self, content: bytes) -> str:
        """Serves what the list says; returns why not, or an empty string."""
        try:
            wanted = parse_adapters(content)
            if wanted != self._adapters:
                began_s = time.monotonic()
                self._engine.change_adapters(self._reader.read(wanted))
                self._adapters = wanted
                names, took_s = ", ".join(one.name for one in wanted), time.monotonic() - began_s
                log.info(f"{self._name}: serves the adapters {names}, after {took_s:.2f} s")
        except Exception as error:
            is_ours = isinstance(error, RuntimeModelError)
            why = reason(error) if is_ours else f"{type(error).__name__}: {reason(error)}"
            log.error(f"{self._name}: {why}; the adapters before go on")
            return why
        return ""


class _Status:
    """The file in which this process says what it has read."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._path = folder / f"{prefix}{os.getpid()}.json"
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            log.warn(f"apply can't change adapters while they are served: {error.strerror}")

    def say(self, content: bytes, refusal: str) -> None:
        """Says that ``content`` was read, and why it is not served, or an empty string."""
        if self._descriptor is not None:
            values = {"read": hashlib.sha256(content).hexdigest(), "refusal": refusal}
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(values).encode(), 0)

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
                self._path.parent.rmdir()  # where it was the last
            os.close(self._descriptor)
