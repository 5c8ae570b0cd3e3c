"""The running server that an apply changes: finds it, loads and unloads its models and waits for
the result. Knows no files of models.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from generator.errors import ServerError
from generator.render.manifest import digest_of_served
from hf_triton.tritonserver.http_api import ServerApi, patiently
from hf_triton.tritonserver.state_file import running_servers
from hf_triton.tritonserver.triton_texts import LOADING, READY, UNLOADING, one_line

_POLL_S = 0.1
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ServedFolder:
    """One Triton model in a server: each version's state and why it is not ready, and the digest in
    the configuration of the version that answers.
    """

    states: Mapping[int, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    digest: str = ""

    def versions(self, *states: str) -> set[int]:
        return {version for version, state in self.states.items() if state in states}

    @property
    def ready(self) -> set[int]:
        return self.versions(READY)

    @property
    def active(self) -> set[int]:
        """The versions that answer, are loading, or still have requests."""
        return self.versions(READY, LOADING, UNLOADING)


_UNKNOWN = ServedFolder()


@dataclass(frozen=True)
class Target:
    """``name`` is the server in messages. All threads of an apply share it. Every call raises
    ServerError if the server can't be reached.
    """

    api: ServerApi
    name: str = "the server"

    def served(self, folders: Iterable[str]) -> dict[str, ServedFolder]:
        known, served = self._folders(), {}
        for folder in folders:
            found = served[folder] = known.get(folder, _UNKNOWN)
            if found.ready:
                config = self._ask(partial(self.api.model_config, folder))
                served[folder] = replace(found, digest=digest_of_served(config))
        return served

    def active_folders(self) -> list[str]:
        """The folders with a version that answers, is loading, or still has requests."""
        return sorted(folder for folder, found in self._folders().items() if found.active)

    def load(self, folder: str, version: int, *steps: tuple[str, int]) -> str | None:
        """Loads a folder; returns None, or the reason in one line why ``version`` or a step of it
        is not ready afterwards: Triton reports success for an ensemble whose step failed.
        """
        try:
            failure = self.api.load(folder)
        except OSError as error:
            raise ServerError(f"the server stopped while it loaded {folder}") from error
        if failure is not None:
            return failure.removeprefix(f"{folder}: ")
        for name, number in (*steps, (folder, version)):
            if not self._ask(partial(self.api.is_model_ready, name, str(number))):
                reason = self._folders().get(name, _UNKNOWN).reasons.get(number, "")
                said = one_line(reason).removeprefix(f"{name}: ") if reason else ""
                said = said or f"version {number} was loaded, but is not ready"
                return said if name == folder else f"{name}: {said}"
        return None

    def unload(self, folder: str) -> str | None:
        """Starts to unload a folder; returns None, or the reason in one line if it is refused."""
        return self._ask(lambda: self.api.unload(folder))

    def active_versions(self, folder: str) -> set[int]:
        return self._folders().get(folder, _UNKNOWN).active

    def wait_gone(self, folder: str, versions: Iterable[int], timeout_s: float) -> set[int]:
        """Waits until the versions are unloaded; returns those that still have requests."""
        going = set(versions)
        return self._wait(lambda: self.active_versions(folder) & going, timeout_s)

    def wait_loaded(self, folders: Sequence[str], timeout_s: float) -> str:
        """Waits until none of the folders is being loaded; returns one that still is, or empty."""

        def busy() -> list[str]:
            found = self._folders()
            return [name for name in folders if found.get(name, _UNKNOWN).versions(LOADING)]

        return next(iter(self._wait(busy, timeout_s)), "")

    def _wait(self, left: Callable[[], _Found], timeout_s: float) -> _Found:
        """Waits until nothing is ``left``; returns what is after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while (found := left()) and time.monotonic() <= deadline:
            time.sleep(_POLL_S)
        return found

    def _folders(self) -> dict[str, ServedFolder]:
        """Every Triton model in the server's index, without digests."""
        states: dict[str, dict[int, str]] = {}
        reasons: dict[str, dict[int, str]] = {}
        for entry in self._ask(self.api.index):
            with contextlib.suppress(ValueError):
                states.setdefault(entry.model, {})[int(entry.version)] = entry.state
                reasons.setdefault(entry.model, {})[int(entry.version)] = entry.reason
        return {name: ServedFolder(found, reasons[name]) for name, found in states.items()}

    def _ask(self, ask: Callable[[], _Found]) -> _Found:
        try:
            return patiently(ask)
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise ServerError(f"the server no longer answers: {why}") from error


def running_target(repository: Path, http_port: int | None) -> Target:
    """The server on this machine that serves ``repository``. Raises ServerError if there is none
    that we may change, or several and ``http_port`` does not name one of them.
    """
    found = running_servers(repository)
    chosen = [state for state in found if http_port in (None, state.http_port)]
    if not found:
        raise ServerError(
            f"no server runs on {repository} on this machine: start one with hf-triton serve, or "
            "run apply where it runs, such as docker exec CONTAINER hf-triton apply"
        )
    if len(chosen) != 1:
        ports = ", ".join(f"{state.http_port} (process {state.pid})" for state in found)
        what = "several servers run" if http_port is None else f"none with --http-port {http_port}"
        raise ServerError(f"{repository}: {what}; choose one with --http-port: {ports}")
    state = chosen[0]
    if state.sockets and not os.access(state.sockets, os.X_OK):
        raise ServerError(
            f"{repository}: its server, process {state.pid}, runs in a container or as another "
            "user: run apply there, such as docker exec CONTAINER hf-triton apply"
        )
    return Target(ServerApi(state), state.address(state.http_port))
