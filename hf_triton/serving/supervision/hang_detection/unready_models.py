"""Finds loaded models that report themselves as not ready: an engine that is stuck in a step, or
whose thread died. 24.10 only: Triton asks them itself from 26.03 on; our own models say it with
each heartbeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from typing import Any, Protocol

from generator.errors import ServerError
from generator.spec.triton_models import ROLE_PARAMETER

# Before this, the engine's own watchdog has waited (watchdog_s). What it waits for may still end: a
# step on a GPU leaves the processor idle, so nobody can tell it from one that never does.
_PATIENCE_S = 60.0


class Server(Protocol):
    """The calls to a server."""

    def is_model_ready(self, name: str, version: str = "") -> bool: ...
    def model_config(self, name: str, version: str = "") -> dict[str, Any] | None: ...


class UnreadyModels:
    """The models of a server that report as not ready, and since when."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._since_s: dict[str, float] = {}

    @property
    def folders(self) -> set[str]:
        """The models that were not ready when they were last asked."""
        return set(self._since_s)

    def ask(self, folders: Iterable[str], not_ready: Set[str] = frozenset()) -> None:
        """Asks loaded models, which can take long: on a thread of its own. One that does not answer
        in time keeps its state. Of those in ``not_ready`` that is known.
        """
        folders = set(folders)
        self._since_s = {name: at for name, at in self._since_s.items() if name in folders}
        for folder in folders:
            try:
                is_ready = folder not in not_ready and self._server.is_model_ready(folder)
            except (OSError, ServerError):
                continue
            if is_ready:
                self._since_s.pop(folder, None)
            else:
                self._since_s.setdefault(folder, self._clock())

    def overdue(self) -> list[str]:
        """The models that were not ready for a minute and should be reloaded; each once a minute.

        Never a front or an ensemble: they wait for their engine or steps, which are reloaded.
        """
        now = self._clock()
        late = [
            name for name, since_s in list(self._since_s.items()) if now - since_s > _PATIENCE_S
        ]
        for name in late:
            self._since_s[name] = now
        return [name for name in late if self._computes(name)]

    def _computes(self, folder: str) -> bool:
        try:
            config = self._server.model_config(folder) or {}
        except (OSError, ServerError):
            return False
        role = config.get("parameters", {}).get(ROLE_PARAMETER, {}).get("string_value")
        return config.get("backend") == "python" and role not in (None, "front")
