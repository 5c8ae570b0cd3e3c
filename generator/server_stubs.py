"""The Python stubs of a server, by their models: which of them have died.

Triton 24.10 does not tell: a model whose stub was killed, by the kernel when memory runs out for
one, still counts as ready. Linux only, as the server is.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_PROCESSES = Path("/proc")
_STUB = "triton_python_backend_stub"


class StubWatch:
    """Remembers the stubs of a process group from one look to the next."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._seen = _find_stubs(group)

    def newly_dead(self) -> set[str]:
        """The models that have lost a stub since the last look."""
        before, self._seen = self._seen, _find_stubs(self._group)
        return {model for pid, model in before.items() if pid not in self._seen}


def _find_stubs(group: int) -> dict[int, str]:
    """Process id -> model, of every stub alive in the process group."""
    found = {}
    for folder in _PROCESSES.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended between two reads
            # pid (name) state parent group ...: the name may hold spaces, and parentheses
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) != group:
                continue
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if command[0].endswith(_STUB):  # <backend>/triton_python_backend_stub <model.py> ...
                found[int(folder.name)] = Path(command[1]).parent.parent.name
    return found
