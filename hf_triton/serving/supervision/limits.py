"""The limits that a server is started with; what keeps it from memory that the machine has.

Where a limit on addresses, or strict overcommit, refuses some, libraries abort with "Resource
temporarily unavailable" and no reason. Threads' stacks and libraries take tens of GiB of addresses
of which little is ever used; with a GPU, CUDA takes hundreds.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

_MEMORY_LIMITS = (
    (resource.RLIMIT_AS, "addresses are", "v"),
    (resource.RLIMIT_DATA, "data are", "d"),
)
# Some programs go through all that they may have.
_MOST_DESCRIPTORS = 1 << 20
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
_STRICT = "2"  # Linux' Documentation/mm/overcommit-accounting.rst


def raise_all() -> None:
    """Raises this process' limits, which are its children's too, as far as it may: on addresses,
    and on file descriptors, of which each connection takes one (the usual 1,024 are there for
    programs that call select()).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    for limit, _, _ in _MEMORY_LIMITS:
        resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)


def shortage_of_memory() -> str:
    """What may refuse memory here, and what to do; "" where nothing does."""
    found = []
    for limit, what, letter in _MEMORY_LIMITS:
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            found.append(
                f"{what} limited to {soft / 2**30:.1f} GiB for each process (ulimit -{letter}), "
                "used or not: lift that limit, and limit memory by a container or systemd's "
                "MemoryMax= instead"
            )
    with contextlib.suppress(OSError):
        if OVERCOMMIT.read_text(encoding="ascii").strip() == _STRICT:
            found.append(
                "this machine promises no more memory than it has, used or not "
                "(vm.overcommit_memory is 2): set it to 0, or add swap"
            )
    return "; ".join(found)
