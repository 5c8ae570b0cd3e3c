"""Loads and unloads models of a running server, and waits for the result; all threads of an apply
share one. Knows no files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from generator.errors import ServerError
from generator.render.manifest import digest_of_served
from hf_triton.tritonserver.http_api import ServerApi, patiently
from hf_triton.tritonserver.triton_texts import LOADING, READY, UNLOADING, one_line

_POLL_S = 0.1
_ACTIVE = (READY, LOADING, UNLOADING)
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ServedFolder:
    """The state of one Triton model in a server: of each version, and the digest in the
    configuration of the version that answers.
    """

    states: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    digest: str = ""

    @property
    def ready(self) -> set[int]:
        """The versions that answer requests."""
        return {version for version, state in self.states.items() if state == READY}

    @property
    def active(self) -> set[int]:
        """The versions that answer, are loading, or still have requests."""
        return {version for version, state in self.states.items() if state in _ACTIVE}

    @property
    def is_loading(self) -> bool:
        """Whether a version is being loaded."""
        return LOADING in self.states.values()


class ModelControl:
    """Controls one server. Every call raises ServerError if the server can't be reached."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api

    def served(self, folders: Iterable[str]) -> dict[str, ServedFolder]:
        found = self._states()
        return {folder: self._with_digest(folder, found.get(folder)) for folder in folders}

    def active_folders(self) -> list[str]:
        """The folders with a version that answers, is loading, or still has requests."""
        return sorted(folder for folder, found in self._states().items() if found.active)

    def metrics(self) -> str:
        """The server's /metrics; empty where it has none."""
        return self._api.metrics()

    def load(self, folder: str, version: int) -> str | None:
        """Loads a folder; returns None, or the reason in one line if ``version`` is not ready
        afterwards. That is asked because Triton reports success for an ensemble whose step failed.
        """
        try:
            failure = self._api.load(folder)
        except OSError as error:
            raise ServerError(f"the server went away while it loaded {folder}") from error
        if failure is not None:
            return failure.removeprefix(f"{folder}: ")
        return self.why_not_ready(folder, version)

    def why_not_ready(self, folder: str, version: int) -> str | None:
        """Why a version is not ready, in one line; None if it is."""
        if self._ask(lambda: self._api.is_model_ready(folder, str(version))):
            return None
        found = self._states().get(folder, ServedFolder())
        reason = found.reasons.get(version, "")
        said = one_line(reason).removeprefix(f"{folder}: ") if reason else ""
        return said or f"version {version} was loaded, but is not ready"

    def unload(self, folder: str) -> str | None:
        """Starts to unload a folder; returns None, or the reason in one line if it is refused."""
        return self._ask(lambda: self._api.unload(folder))

    def active_versions(self, folder: str) -> set[int]:
        """The versions of a folder that answer, are loading, or still have requests."""
        return self._states().get(folder, ServedFolder()).active

    def wait_gone(self, folder: str, versions: Iterable[int], timeout_s: float) -> set[int]:
        """Waits until the versions are unloaded; returns those that still have requests."""
        going = set(versions)
        deadline = time.monotonic() + timeout_s
        while left := self.active_versions(folder) & going:
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return left

    def wait_loaded(self, folders: Iterable[str], timeout_s: float) -> str:
        """Waits until none of the folders is being loaded; returns one that still is, or empty."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self._states()
            busy = [name for name in folders if found.get(name, ServedFolder()).is_loading]
            if not busy or time.monotonic() > deadline:
                return busy[0] if busy else ""
            time.sleep(_POLL_S)

    def _with_digest(self, folder: str, found: ServedFolder | None) -> ServedFolder:
        if found is None or not found.ready:
            return found or ServedFolder()
        config = self._ask(lambda: self._api.model_config(folder))
        return ServedFolder(found.states, found.reasons, digest_of_served(config))

    def _states(self) -> dict[str, ServedFolder]:
        """By folder, without digests."""
        states: dict[str, dict[int, str]] = {}
        reasons: dict[str, dict[int, str]] = {}
        for entry in self._ask(self._api.index):
            with contextlib.suppress(ValueError):
                states.setdefault(entry.model, {})[int(entry.version)] = entry.state
                reasons.setdefault(entry.model, {})[int(entry.version)] = entry.reason
        return {name: ServedFolder(found, reasons[name]) for name, found in states.items()}

    def _ask(self, ask: Callable[[], _Found]) -> _Found:
        try:
            return patiently(ask)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ServerError(f"the server does not answer any more: {reason}") from error
