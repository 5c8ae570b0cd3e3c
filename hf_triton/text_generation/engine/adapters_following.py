"""Reads ``adapters.json`` again when it changes: the engine serves its adapters from its next step
on, or goes on with those before where one can't be served.

Each process writes what it has read to a file of its own, which it locks while it runs;
hf_triton/tritonserver/adapters.py reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import RuntimeModelError, place, reason
from hf_triton.runtime.weights.served_model import ServedModel, parse_adapters

_LOOK_EVERY_S = 0.1


class AdaptersFollower:
    """Follows the list of one instance, until its engine stops."""

    def __init__(self, served: ServedModel, read: Callable[[Any], Any], engine: Any) -> None:
        assert served.adapters_file is not None
        self._file, self._name = served.adapters_file, served.name
        self._adapters = served.adapters
        self._read_adapters, self._engine = read, engine
        self._last_content = b""
        name = f"{self._name}-{self._file.parent.name}-{os.getpid()}.json"
        self._status = served.cache_dir / "adapters" / name

    def start(self) -> None:
        threading.Thread(target=self._follow, name="adapters", daemon=True).start()

    def _follow(self) -> None:
        torch.set_num_threads(1)  # parallel work belongs to the engine's thread alone
        with _locked(self._status) as descriptor:
            while self._engine.thread.stop_at_s is None:
                try:
                    self._check_file(descriptor)
                except Exception as error:
                    log.error(f"{self._name}: {self._file.name}: {place(error)}")
                time.sleep(_LOOK_EVERY_S)

    def _check_file(self, status: int | None) -> None:
        with contextlib.suppress(FileNotFoundError):  # the version is taken away
            content = self._file.read_bytes()
            if content == self._last_content:
                self._engine.forget_removed_adapters()
                return
            self._last_content = content
            values = {"read": hashlib.sha256(content).hexdigest(), "refusal": self._serve(content)}
            if status is not None:
                os.ftruncate(status, 0)
                os.pwrite(status, json.dumps(values).encode(), 0)

    def _serve(self, content: bytes) -> str:
        """Serves the adapters of the list; returns why not, or an empty string."""
        try:
            wanted = parse_adapters(content)
            if wanted != self._adapters:
                began_s = time.monotonic()
                self._engine.change_adapters(self._read_adapters(wanted))
                self._adapters = wanted
                names, took_s = ", ".join(one.name for one in wanted), time.monotonic() - began_s
                log.info(f"{self._name}: serves the adapters {names}, after {took_s:.2f} s")
        except Exception as error:
            is_ours = isinstance(error, RuntimeModelError)
            why = reason(error) if is_ours else f"{type(error).__name__}: {reason(error)}"
            log.error(f"{self._name}: {why}; the previous adapters stay in use")
            return why
        return ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The descriptor of a file that is locked until it is removed; None where it can't be made."""
    descriptor = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        log.warn(f"apply can't change adapters while they are served: {error.strerror}")
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()  # where it was the last
            os.close(descriptor)
