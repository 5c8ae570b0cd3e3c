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

import psutil

from hf_triton.runtime.devices.cpu_quota import num_cores

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "nvidia-pytriton")
NOTHING: Mapping[str, str] = MappingProxyType({})
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")


def here(command: str, versions_too: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """The fields of a Run (perf/report/schema.py) that describe this machine and this moment, with
    further versions.
    """
    return {
        "created": now(),
        "command": command,
        "commit": commit(),
        "hardware": hardware(),
        "versions": {**versions_too, **versions()},
    }


def now() -> str:
    """The time as ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def hardware() -> dict[str, str | int | float]:
    """Describes the machine; ``load_average`` shows whether it was idle."""
    features = _of_cpu("flags").split()
    found: dict[str, str | int | float] = {
        "cpu": _of_cpu("model name") or platform.processor(),
        "cores": num_cores(),
        "cpu_features": " ".join(name for name in CPU_FEATURES if name in features),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2),
    }
    gpus = _printed("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return {**found, **({"gpu": ", ".join(gpus)} if gpus else {})}


def _of_cpu(key: str) -> str:
    """The first value of ``key`` in /proc/cpuinfo; empty without one."""
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == key), "")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter here, where installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)  # with several on the path, the imported one
    return {"python": platform.python_version(), **found}


def commit() -> str:
    """The checkout's commit, marked ``-dirty`` where files differ from it, or ``unknown``."""
    words = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return _printed("git", *words) or "unknown"


def _printed(program: str, *arguments: str) -> str:
    """The output of a program; empty where it is not installed or fails."""
    try:
        done = subprocess.run(
            [program, *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
