"""Models that say themselves that they are not ready, though Triton has them loaded: an engine
that is stuck in a step or whose thread died. Servers before 26.04 don't ask them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from generator.errors import ServerError
from generator.spec.triton_models import ROLE_PARAMETER

# Longer than a compilation or a garbage collection keeps a process from answering. Before this, the
# engine's own watchdog has waited (watchdog_s).
_PATIENCE_S = 60.0


class Server(Protocol):
    """What is asked of a server."""

    def is_model_ready(self, name: str, version: str = "") -> bool: ...  # noqa: D102
    def model_config(self, name: str, version: str = "") -> dict[str, Any] | None: ...  # noqa: D102


class UnreadyModels:
    """Which of a server's models say so, and since when."""

    def __init__(self, server: Server, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._since_s: dict[str, float] = {}

    @property
    def folders(self) -> set[str]:
        """Those that said so when they were last asked."""
        return set(self._since_s)

    def ask(self, folders: Iterable[str]) -> None:
        """Asks models that are loaded. One that does not answer in time has said nothing new."""
        folders = set(folders)
        self._since_s = {name: at for name, at in self._since_s.items() if name in folders}
        for folder in folders:
            try:
                is_ready = self._server.is_model_ready(folder)
            except (OSError, ServerError):
                continue
            if is_ready:
                self._since_s.pop(folder, None)
            else:
                self._since_s.setdefault(folder, self._clock())

    def overdue(self) -> list[str]:
        """Those that have said so for too long and that loading again can help; each once a minute.

        A front waits for its engine, and an ensemble for its steps: neither helps itself.
        """
        now = self._clock()
        late = [name for name, since_s in self._since_s.items() if now - since_s > _PATIENCE_S]
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
