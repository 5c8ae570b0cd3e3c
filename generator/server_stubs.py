"""The Python stubs of a server, by their models: which of them are there.

Triton 24.10 does not tell: a model whose stub was killed, by the kernel when memory runs out for
one, still counts as ready. Linux only, as the server is.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROCESSES = Path("/proc")
_STUB = "triton_python_backend_stub"


@dataclass(frozen=True, order=True)
class Stub:
    """One process: an instance of a version of a model."""

    model: str
    version: str
    pid: int


def find_stubs(group: int) -> frozenset[Stub]:
    """Every stub alive in the process group."""
    found = set()
    for folder, fields in _processes(group):
        with contextlib.suppress(OSError):  # it ended between two reads
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if fields[0] not in "ZX" and command[0].endswith(_STUB):
                version = Path(command[1]).parent  # .../triton_python_backend_stub <model.py> ...
                found.add(Stub(version.parent.name, version.name, int(folder.name)))
    return frozenset(found)


def still_alive(stubs: Iterable[Stub]) -> frozenset[Stub]:
    """Those of ``stubs`` that have not ended; cheaper than a look at every process there is."""
    return frozenset(stub for stub in stubs if _is_alive(stub.pid))


def _is_alive(pid: int) -> bool:
    try:
        stat = (_PROCESSES / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def cpu_seconds(group: int) -> dict[int, float]:
    """What each process of the group has used of the processor so far, in seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        int(folder.name): (int(fields[11]) + int(fields[12])) / ticks
        for folder, fields in _processes(group)
    }


def _processes(group: int) -> Iterator[tuple[Path, list[str]]]:
    """Each process's folder, and the fields of its ``stat`` from the state on."""
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended between two reads
            # pid (name) state parent group ...: the name may hold spaces, and parentheses
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                yield folder, fields


def how_it_ended(pid: int) -> str:
    """Such as ``killed by SIGKILL: out of memory?``; "" where nobody can tell any more."""
    try:
        fields = (_PROCESSES / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2]
        state, status = fields.split()[0], int(fields.split()[-1])
    except (OSError, ValueError, IndexError):
        return ""
    if state != "Z":  # another process has its number
        return ""
    if not os.WIFSIGNALED(status):
        return f"exit code {os.WEXITSTATUS(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    return f"killed by {name}{': out of memory?' * (name == 'SIGKILL')}"
