"""Locks a run's folder for one measurement at a time, and lets it continue its own run only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from generator.errors import PerfError
from generator.repository.writing import locked
from hf_triton.runtime.devices.device import num_cores
from perf.report.schema import REPORT_FILE, Run, read_run, write_run

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "nvidia-pytriton")
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16")


def run_context(command: str, **versions: str) -> dict[str, Any]:
    """The fields of a Run that describe this machine and this moment; ``-dirty`` marks a commit
    from which files differ.
    """
    versions["python"] = platform.python_version()
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)  # with several on the path, the imported one
    words = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return {
        "created": now(),
        "command": command,
        "commit": _printed("git", *words) or "unknown",
        "hardware": _hardware(),
        "versions": versions,
    }


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _hardware() -> dict[str, str | int | float]:
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(":") for line in reversed(lines))
    cpu = {name.strip(): value.strip() for name, _, value in pairs}
    features = cpu.get("flags", "").split()
    found: dict[str, str | int | float] = {
        "cpu": cpu.get("model name") or platform.processor(),
        "cores": num_cores(),
        "cpu_features": " ".join(name for name in CPU_FEATURES if name in features),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": round(os.getloadavg()[0], 2),  # shows whether it was idle
    }
    gpus = _printed("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return {**found, **({"gpu": ", ".join(gpus)} if gpus else {})}


def _printed(program: str, *arguments: str) -> str:
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


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Creates and locks ``folder``; removes it if it is empty at the end. Raises GeneratorError."""
    try:
        with locked(folder):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    folder.rmdir()
    except BrokenPipeError:  # the reader of stdout has gone
        raise
    except OSError as error:
        hint = " (free some)" if error.errno == errno.ENOSPC else ""
        raise PerfError(
            f"{error.filename or folder}: {error.strerror or error}{hint}; what is measured is "
            f"kept in {folder}, and the same command continues there"
        ) from None


def continued_or_new(folder: Path, run: Run) -> Run:
    """The run in the folder, else ``run``, which is written there. Raises PerfError for another
    run.
    """
    otherwise = "choose another --output, or remove it"
    if not (folder / REPORT_FILE).exists():
        write_run(folder, run)
        return run
    try:
        before = read_run(folder)
    except PerfError as error:
        raise PerfError(f"{error}; {otherwise}") from None
    had, asked = dict(before.scenario), json.loads(json.dumps(run.scenario))
    if before.kind != run.kind or had != asked:
        keys = sorted(key for key in {*had, *asked} if had.get(key) != asked.get(key))
        raise PerfError(
            f"{folder} holds another run (different: {', '.join(keys) or before.kind}); {otherwise}"
        )
    return before
