"""The memory that models take: as measured when this server loaded them last; before a first load
an estimate by the files of their weights. And the memory that those that are loaded on demand may
take together. Bytes by device, ``cpu`` or ``cuda:0``.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from generator.models_yaml.server_settings import OnDemand
from generator.render.memory import CPU, folder_bytes
from generator.render.model_data import newest_json
from hf_triton.runtime.devices.device import free_cpu_bytes
from hf_triton.serving.apply.memory import running_copy
from hf_triton.tritonserver.http_api import Sample
from hf_triton.tritonserver.stubs import Stub
from hf_triton.tritonserver.system_calls import start_thread

_CACHE_OF_WEIGHTS = 0.25
_GIB = 2**30
_MEASURE_EVERY_S = 2.0
_ASK_GPUS_EVERY_S = 5.0
_LEFT_FREE = 0.1  # of what is free where no budget is given: for what models take beyond their load
_NVIDIA_SMI_TIMEOUT_S = 10.0


class Sizes:
    """The sizes of one server's models. ``folders_of`` gives an entry's folders, ``stubs`` the
    processes that run, ``metrics`` those of tritonserver.
    """

    def __init__(
        self,
        repository: Path,
        settings: OnDemand,
        folders_of: Callable[[str], Sequence[str]],
        stubs: Callable[[], Iterable[Stub]],
        metrics: Callable[[], Sequence[Sample]],
    ) -> None:
        self._repository, self._settings = repository, settings
        self._folders_of, self._stubs, self._metrics = folders_of, stubs, metrics
        # The estimate at a model's last run, and the memory that it took.
        self._known: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        self._running: dict[str, dict[str, float]] = {}
        self._published: dict[str, dict[str, float]] = {}  # of GPUs
        self._estimates: dict[str, tuple[object, dict[str, float]]] = {}
        self._measured_at_s = self._ask_gpus_at_s = 0.0
        self._gpus: dict[str, tuple[float, float]] | None = None  # total and free bytes

    def of(self, name: str) -> Mapping[str, float]:
        if name in self._running:
            return self._running[name]
        estimate = self._estimate(name)
        before, size = self._known.get(name, (estimate, estimate))
        return size if before == estimate else estimate  # where it is still the same

    def measure(self, loaded: Iterable[str]) -> None:
        """Looks at the processes of those that are loaded, every other second."""
        if time.monotonic() < self._measured_at_s + _MEASURE_EVERY_S:
            return
        self._measured_at_s = time.monotonic()
        by_folder = _private_bytes(self._stubs())
        self._running = {}
        for name in loaded:
            found = sum(by_folder.get(folder, 0.0) for folder in self._folders_of(name))
            if found:
                self._running[name] = {CPU: found, **self._published.get(name, {})}
                self._known[name] = self._estimate(name), self._running[name]

    def note_loaded(self, name: str) -> None:
        """An entry has been loaded: what it published of its GPUs counts from now on."""
        self._measured_at_s = 0.0
        self._estimates.pop(name, None)  # its files are here now
        copy = running_copy(self._metrics(), {name, *self._folders_of(name)})
        loaded = copy.loaded if copy else {}
        self._published[name] = {one: size for one, size in loaded.items() if one != CPU}

    def note_unloaded(self, name: str) -> None:
        """An entry is being unloaded: its last measured size stays its size."""
        self._running.pop(name, None)

    def limits(self) -> Mapping[str, float]:
        """The bytes that they may take together, of each device."""
        settings = self._settings
        found = {}
        for device, (total, free) in self._devices().items():
            if settings.memory_gib is not None:
                found[device] = settings.memory_gib * _GIB
            elif settings.memory_share is not None:
                found[device] = settings.memory_share * total
            else:
                held = sum(size.get(device, 0) for size in self._running.values())
                found[device] = (free + held) * (1 - _LEFT_FREE)
        return found

    def cache_budgets(self, names: Iterable[str]) -> dict[str, dict[str, float]]:
        """The bytes of each GPU that each entry may take for keys and values, unless models.yaml
        sets kv_cache_gib: a share, by its weights, of the memory that the weights of all entries
        leave; if they leave too little, a part of its weights. The share does not depend on which
        others are loaded.
        """
        weights = {
            name: {device: size for device, size in self._estimate(name).items() if device != CPU}
            for name in names
        }
        limits, total = self.limits(), _added(weights.values())
        return {
            name: {
                device: size * max(_CACHE_OF_WEIGHTS, limits.get(device, 0.0) / total[device] - 1)
                for device, size in own.items()
                if size
            }
            for name, own in weights.items()
        }

    def _devices(self) -> dict[str, tuple[float, float]]:
        """Bytes of each, and those that are free."""
        if self._gpus is None:
            self._gpus = gpu_bytes()
        elif self._settings.memory_gib is None and time.monotonic() >= self._ask_gpus_at_s:
            # It takes up to a second, in which the models would not be watched.
            self._ask_gpus_at_s = time.monotonic() + _ASK_GPUS_EVERY_S
            start_thread(self._ask_gpus)
        return {CPU: (psutil.virtual_memory().total, free_cpu_bytes()), **self._gpus}

    def _ask_gpus(self) -> None:
        self._gpus = gpu_bytes()

    def _estimate(self, name: str) -> dict[str, float]:
        """The size of a model that never ran, by its files; kept until a config.pbtxt changes."""
        paths = [self._repository / folder for folder in self._folders_of(name)]
        changed_at = []
        for path in paths:
            with contextlib.suppress(OSError):
                changed_at.append((path / "config.pbtxt").stat().st_mtime_ns)
        known = self._estimates.get(name)
        if known is None or known[0] != changed_at:
            gpus = [device for device in self._devices() if device != CPU]
            sizes = [folder_bytes(one, _model_values(one), gpus) for one in paths]
            known = self._estimates[name] = (changed_at, _added(sizes))
        return known[1]


def _added(sizes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total = defaultdict[str, float](float)
    for own in sizes:
        for device, size in own.items():
            total[device] += size
    return dict(total)


def _model_values(folder: Path) -> dict[str, Any]:
    """The model.json of the newest version; empty of a front."""
    found = newest_json(folder, "model.json") or {}
    return found if found.keys() & {"model", "file"} else {}


def _private_bytes(stubs: Iterable[Stub]) -> dict[str, float]:
    """The bytes that processes and those below them share with no file, by the folder of each."""
    found = defaultdict[str, float](float)
    known = {stub.pid: stub.model for stub in stubs}
    parents: dict[int, int] = {}
    sizes: dict[int, float] = {}
    for process in psutil.process_iter(["ppid", "memory_info"]):
        if memory := process.info["memory_info"]:
            parents[process.pid] = process.info["ppid"]
            sizes[process.pid] = memory.rss - memory.shared
    for pid, size in sizes.items():
        while pid and pid not in known:
            pid = parents.get(pid, 0)
        if pid:
            found[known[pid]] += size
    return found


def gpu_bytes() -> dict[str, tuple[float, float]]:
    """Bytes of each GPU, and those that are free; empty where there is none."""
    command = ("nvidia-smi", "--query-gpu=index,memory.total,memory.free")
    if shutil.which(command[0]) is None:
        return {}
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        answer = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
        rows = [line.split(",") for line in answer.stdout.splitlines() if line.strip()]
        return {
            f"cuda:{int(row[0])}": (float(row[1]) * 2**20, float(row[2]) * 2**20) for row in rows
        }
    return {}
