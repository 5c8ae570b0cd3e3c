"""What can be seen of a server from outside: memory of its processes, shared memory, gauges."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import psutil

from hf_triton.tritonserver.process import TritonServer

_SHARED_MEMORY = Path("/dev/shm")
_GAUGES = ("hf_triton_running", "hf_triton_waiting", "hf_triton_kv_slots_used")
_MIB = 2**20


def memory_mib(server: TritonServer) -> dict[str, float]:
    """By model, ``tritonserver``, and ``/dev/shm`` for the regions of this server."""
    held = {}
    for process in psutil.Process(server.pid).children(recursive=True):
        command = process.cmdline()
        program = Path(command[0]).name if command else ""
        if program == "triton_python_backend_stub":
            held[Path(command[1]).parts[-3]] = (
                process.memory_info().rss / _MIB
            )  # .../demo/1/model.py
        elif program == "tritonserver":
            held[program] = process.memory_info().rss / _MIB
    prefix: str = server.shared_memory_prefix
    regions = (path.stat().st_blocks * 512 for path in _SHARED_MEMORY.glob(f"{prefix}*"))
    return {**held, "/dev/shm": sum(regions) / _MIB}


def grown(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Whose memory grew by more than 5 %, and than 4 MiB, which one answer may take."""
    return [
        f"{name}: {before.get(name, 0.0):.1f} -> {held:.1f} MiB"
        for name, held in after.items()
        if held > max(1.05 * before.get(name, 0.0), before.get(name, 0.0) + 4)
    ]


def still_busy(server: TritonServer, timeout_s: float = 60.0) -> dict[str, float]:
    """The gauges of running, waiting and used slots that don't go back to 0."""
    listen = server.listen
    url = f"http://{listen.address(listen.metrics_port)}/metrics"
    deadline = time.monotonic() + timeout_s
    while True:
        with urllib.request.urlopen(url, timeout=30) as response:
            lines = response.read().decode().splitlines()
        gauges = [line.rsplit(" ", 1) for line in lines if line.startswith(_GAUGES)]
        assert gauges, "/metrics has no gauge of ours"
        busy = {name: float(value) for name, value in gauges if float(value)}
        if not busy or time.monotonic() > deadline:
            return busy
        time.sleep(0.2)
