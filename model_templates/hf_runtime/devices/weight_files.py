"""The files in which copies of a model share weights (shared_pages.py), and their removal.

Imports the standard library alone: `hf-triton serve` runs it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path


def prefix_of(heartbeats: str) -> Path:
    """What a server's files begin with; ``heartbeats``: heartbeat.py's ``VARIABLE``."""
    return Path(f"{heartbeats.removesuffix('beat_')}weights_")


@contextmanager
def alone(prefix: Path, flags: int = 0) -> Iterator[None]:
    """Nobody else writes, opens or removes files meanwhile: several that write the same would take
    its memory several times. With ``LOCK_NB`` raises OSError where somebody does.
    """
    creating = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(f"{prefix}lock", creating, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(lock)


def remove_unused(heartbeats: str) -> None:
    """Removes the files of a server that no process holds, unless a copy opens or writes some."""
    prefix = prefix_of(heartbeats)
    paths = [*prefix.parent.glob(f"{prefix.name}*")]
    with suppress(OSError), alone(prefix, fcntl.LOCK_NB) if paths else nullcontext():
        for path in paths:
            with suppress(OSError):
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(file)
