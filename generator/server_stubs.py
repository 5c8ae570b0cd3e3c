"""The Python stubs of a server, by their models: which of them are there.

Triton 24.10 does not tell: a model whose stub was killed, by the kernel when memory runs out for
one, still counts as ready. Linux only, as the server is.
"""

from __future__ import annotations

import contextlib
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


class StubWatch:
    """Remembers the stubs of a process group from one look to the next."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._seen = find_stubs(group)

    def newly_gone(self) -> frozenset[Stub]:
        """The stubs that have ended since the last look: died, or were unloaded."""
        before, self._seen = self._seen, find_stubs(self._group)
        return before - self._seen


def find_stubs(group: int) -> frozenset[Stub]:
    """Every stub alive in the process group."""
    found = set()
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended between two reads
            # pid (name) state parent group ...: the name may hold spaces, and parentheses
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) != group or fields[0] in "ZX":
                continue
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if command[0].endswith(_STUB):  # <backend>/triton_python_backend_stub <model.py> ...
                version = Path(command[1]).parent
                found.add(Stub(version.parent.name, version.name, int(folder.name)))
    return frozenset(found)
