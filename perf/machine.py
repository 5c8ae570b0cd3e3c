"""Describes the machine and software of a measurement: hardware, versions, commit."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "nvidia-pytriton")
NOTHING: Mapping[str, str] = MappingProxyType({})
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")


def hardware() -> dict[str, str | int | float]:
    """Describes the machine; ``load_average`` shows whether it was idle."""
    cpu = proc_value("/proc/cpuinfo", "model name") or platform.processor()
    features = (proc_value("/proc/cpuinfo", "flags") or "").split()
    memory_kib = (proc_value("/proc/meminfo", "MemTotal") or "0 kB").split()[0]
    return {
        "cpu": cpu,
        "cores": num_cores(),
        "cpu_features": " ".join(name for name in CPU_FEATURES if name in features),
        "memory_gib": round(int(memory_kib) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def proc_value(path: str, key: str) -> str | None:
    """The first value of ``key`` in a ``key : value`` file of /proc; None without one."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), None)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter here, where installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)  # with several on the path, the imported one
    return {"python": platform.python_version(), **found}


def commit() -> str:
    """The checkout's commit, marked ``-dirty`` where files differ from it, or ``unknown``."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip()


def here(
    command: str,
    hardware_too: Mapping[str, str] = NOTHING,
    versions_too: Mapping[str, str] = NOTHING,
) -> dict[str, Any]:
    """The fields of a Run (perf/report/schema.py) that describe this machine and this moment, with
    further hardware and versions.
    """
    return {
        "created": now(),
        "command": command,
        "commit": commit(),
        "hardware": {**hardware(), **hardware_too},
        "versions": {**versions_too, **versions()},
    }


def now() -> str:
    """The time as ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
