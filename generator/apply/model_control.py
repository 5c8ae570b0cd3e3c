"""Loads and unloads the models of a running server and waits for what that brings; one for all
threads of an apply. Knows no files.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from generator.errors import ServerError
from generator.render.digest import digest_of_served
from generator.server.http_api import ServerApi, one_line

_POLL_S = 0.1
_NUM_TRIES = 10
# As server_loading.py: loads that arrive together can land on one of the server's HTTP threads.
_LOADS_APART_S = 0.1
_BUSY = ("LOADING", "UNLOADING")
_ACTIVE = ("READY", *_BUSY)
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ServedFolder:
    """What a server has of one of Triton's models: each version's state, and the digest in the
    configuration of the one that answers.
    """

    states: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    digest: str = ""

    @property
    def ready(self) -> set[int]:
        """The versions that answer requests."""
        return {version for version, state in self.states.items() if state == "READY"}

    @property
    def active(self) -> set[int]:
        """The versions that answer, come up, or still have requests."""
        return {version for version, state in self.states.items() if state in _ACTIVE}

    @property
    def is_loading(self) -> bool:
        """Whether somebody loads it at the moment."""
        return "LOADING" in self.states.values()


class ModelControl:
    """A server under change. Every call raises ServerError where the server can't be reached."""

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._load_lock = threading.Lock()

    def served(self, folders: Iterable[str]) -> dict[str, ServedFolder]:
        """What the server has of each of the folders."""
        found = self._states()
        return {folder: self._with_digest(folder, found.get(folder)) for folder in folders}

    def active_folders(self) -> list[str]:
        """Every one that has a version which answers, comes up, or still has requests."""
        return sorted(folder for folder, found in self._states().items() if found.active)

    def load(self, folder: str, version: int) -> str | None:
        """Loads what lies in the folder; the reason in one line where ``version`` is not ready
        then. An ensemble's load succeeds where a step's new version has failed: hence the question.
        """
        with self._load_lock:
            time.sleep(_LOADS_APART_S)
        try:
            failure = self._api.load(folder)
        except OSError as error:
            raise ServerError(f"the server went away while it loaded {folder}") from error
        if failure is not None:
            return failure.removeprefix(f"{folder}: ")
        return self.why_not_ready(folder, version)

    def why_not_ready(self, folder: str, version: int) -> str | None:
        """The reason in one line why a version does not answer; None where it does."""
        if self._retry_on_timeout(lambda: self._api.is_model_ready(folder, str(version))):
            return None
        found = self._states().get(folder, ServedFolder())
        reason = found.reasons.get(version, "")
        said = one_line(reason).removeprefix(f"{folder}: ") if reason else ""
        return said or f"version {version} was loaded, but is not ready"

    def unload(self, folder: str) -> str | None:
        """Asks for a folder to be unloaded; the reason in one line where that is refused."""
        return self._retry_on_timeout(lambda: self._api.unload(folder))

    def active_versions(self, folder: str) -> set[int]:
        """Those of a folder that answer, come up, or still have requests."""
        return self._states().get(folder, ServedFolder()).active

    def wait_gone(self, folder: str, versions: Iterable[int], timeout_s: float) -> set[int]:
        """Waits until none of the versions has requests any more; those that still have some."""
        going = set(versions)
        deadline = time.monotonic() + timeout_s
        while left := self.active_versions(folder) & going:
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return left

    def wait_loaded(self, folders: Iterable[str], timeout_s: float) -> str:
        """Waits until nobody loads any of the folders; the one that is still loading, or empty."""
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
        config = self._retry_on_timeout(lambda: self._api.model_config(folder))
        return ServedFolder(found.states, found.reasons, digest_of_served(config))

    def _states(self) -> dict[str, ServedFolder]:
        """By folder, without digests."""
        states: dict[str, dict[int, str]] = {}
        reasons: dict[str, dict[int, str]] = {}
        for entry in self._retry_on_timeout(self._api.index):
            with contextlib.suppress(ValueError):
                states.setdefault(entry.model, {})[int(entry.version)] = entry.state
                reasons.setdefault(entry.model, {})[int(entry.version)] = entry.reason
        return {name: ServedFolder(found, reasons[name]) for name, found in states.items()}

    def _retry_on_timeout(self, ask: Callable[[], _Found]) -> _Found:
        """Asks again where no answer comes: a load keeps one of the server's HTTP threads busy, and
        a connection that lands on it waits as long.
        """
        try:
            for _ in range(_NUM_TRIES - 1):
                with contextlib.suppress(TimeoutError):
                    return ask()
            return ask()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ServerError(f"the server does not answer any more: {reason}") from error
