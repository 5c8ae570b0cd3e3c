"""Finds model versions that Triton calls ready though one of their Python processes has died.

Triton 24.10 does not notice: a model whose process was killed, by the kernel when memory runs out
for example, still counts as ready. A process that ends because its model is unloaded is no death:
Triton reports the unload first. Restarts nothing.

Triton never answers the requests that a model's process took with it. For each such death it keeps
the process' shared memory and 35 threads of its own until it ends itself, 24.10 a zombie too.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from generator.errors import ServerError
from hf_triton.runtime.devices.device import num_instances
from hf_triton.tritonserver.http_api import ServerApi
from hf_triton.tritonserver.listen import SHARED_MEMORY
from hf_triton.tritonserver.model_state import Cause
from hf_triton.tritonserver.stubs import End, Stub, StubEnds, still_alive
from hf_triton.tritonserver.triton_texts import PROCESS_DIED

Version = tuple[str, str]  # Triton's model, its version
_OF_PROCESS = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # Triton's end of its name
_NEW_S = 10.0  # so young a region may be of a process that nobody has seen yet
# 1,000 threads: containers are often limited to some thousands.
_MOST_PROCESSES = 24
_MOST_OF_SHARED_MEMORY = 0.25


@dataclass(frozen=True)
class Death:
    """A model version that lost a process; ``survivors`` are the processes that it still has."""

    folder: str
    version: str
    cause: Cause
    reason: str
    survivors: frozenset[int]


class StubDeaths:
    """Follows the Python processes of one server.

    Most calls of ``look`` only check the known processes. A ``sweep`` also finds new ones, and asks
    the server for all versions, because a process may die before it was ever seen.
    """

    def __init__(
        self,
        server: ServerApi,
        find: Callable[[], Iterable[Stub]],
        ends: StubEnds,
        alive: Callable[[Iterable[Stub]], Iterable[Stub]] = still_alive,
    ) -> None:
        """``find`` returns every Python process that the server has now."""
        self._server, self._find, self._ends, self._alive = server, find, ends, alive
        self.known: frozenset[Stub] = frozenset()  # by the last sweep
        self._complete: dict[Version, frozenset[int]] = {}
        self._asked: dict[Version, frozenset[int]] = {}

    def look(self, sweep: bool = False, find: bool = False) -> list[Death]:
        """The versions that lost a process; none if the server does not answer. A ``sweep``
        reports known ones again; ``find`` also looks for new processes.
        """
        if sweep or find or frozenset(self._alive(self.known)) != self.known:
            self.known = frozenset(self._find())
        living = _by_version(self.known)
        changed = {key: pids for key, pids in living.items() if self._complete.get(key) != pids}
        changed |= dict.fromkeys(self._complete.keys() - living.keys(), frozenset())
        if not sweep and (not changed or changed == self._asked):
            self._asked = changed
            return []
        try:
            deaths = self._judge(living, None if sweep else changed.keys())
        except (OSError, ServerError):
            return []
        self._asked = changed
        return deaths

    def is_dead(self, death: Death) -> bool:
        """Returns whether it was neither reloaded nor unloaded. Raises OSError or ServerError."""
        key = death.folder, death.version
        living = _by_version(self._find()).get(key, frozenset())
        return living <= death.survivors and key in self._server.ready_versions()

    def of_load(self, failure: str, folders: Collection[str], since_s: float) -> tuple[Cause, str]:
        """The cause of a failed load of these models, which began then, and its text; if its
        process died, the text says how.
        """
        if failure != PROCESS_DIED:
            return Cause.LOAD_FAILED, failure
        end = self._ends.last_of(folders, since_s)
        return end.cause, failure.replace("out of memory?", end.text or "out of memory?")

    def living(self, folder: str) -> frozenset[int]:
        return frozenset(stub.pid for stub in self._find() if stub.model == folder)

    def _judge(
        self, living: Mapping[Version, frozenset[int]], changed: Set[Version] | None
    ) -> list[Death]:
        versions = self._server.ready_versions()
        ready = [key for key in versions if changed is None or key in changed]
        deaths = []
        for key in ready:
            pids = living.get(key, frozenset())
            if self._complete.get(key) == pids:
                continue
            config = self._server.model_config(*key) or {}
            is_python = config.get("backend") == "python"
            if len(pids) >= (num_instances(config) if is_python else 0):
                self._complete[key] = pids
            else:
                deaths.append(self._death(key, pids))
        for key in (self._complete.keys() if changed is None else changed) - set(ready):
            self._complete.pop(key, None)  # unloaded, or not loaded yet
        return deaths

    def _death(self, key: Version, survivors: frozenset[int]) -> Death:
        gone = self._complete.get(key, frozenset()) - survivors
        ends = map(self._ends.how, sorted(gone))
        end = next((end for end in ends if end.text), End())
        text = f"its Python process died{end.text and f' ({end.text})'}"
        return Death(*key, end.cause, text, survivors)


def _by_version(stubs: Iterable[Stub]) -> dict[Version, frozenset[int]]:
    found: dict[Version, set[int]] = defaultdict(set)
    for stub in stubs:
        found[stub.model, stub.version].add(stub.pid)
    return {key: frozenset(pids) for key, pids in found.items()}


def left_behind(prefix: str, living: Iterable[int]) -> tuple[int, float]:
    """The number of dead processes that left their shared memory, and the part of all shared memory
    that no living process of a model uses. ``prefix`` is that of a server's regions, ``living`` are
    its models' processes.
    """
    folder = os.statvfs(SHARED_MEMORY)
    size = folder.f_blocks * folder.f_frsize
    used: set[str] = set()
    for pid in living:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            used |= {line.split(maxsplit=5)[-1] for line in lines}
    num_processes = num_bytes = 0
    for region in SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            seen = region.stat()
            if str(region) not in used:
                is_process = _OF_PROCESS.fullmatch(region.name.removeprefix(prefix)) is not None
                num_processes += is_process and time.time() - seen.st_mtime > _NEW_S
                num_bytes += seen.st_blocks * 512
    return num_processes, num_bytes / size if size else 0.0


def are_too_many(num_processes: int, part_of_shared_memory: float) -> bool:
    """Returns whether a server with such leftovers will soon lack threads or shared memory."""
    is_memory_short = num_processes > 0 and part_of_shared_memory > _MOST_OF_SHARED_MEMORY
    return num_processes >= _MOST_PROCESSES or is_memory_short
