"""Folders of this user's where what was worked out once on a machine is kept for all models."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def private_folders(name: str, kind: str = "kernels") -> Iterator[Path]:
    """Folders of that name where what is read without a check may be kept: nobody else can write
    there.
    """
    for folder in _cache_folders(kind):
        if is_made_private(folder / name):
            yield folder / name


def _cache_folders(kind: str) -> Iterator[Path]:
    """Where things may be kept; not all users have a home, nor all machines a folder for others."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    with suppress(RuntimeError):
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        yield Path(home) / "hf-triton" / kind
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"hf-triton-{kind}-{user}"


def is_made_private(path: Path) -> bool:
    """Makes a folder; False where that can't be, or others could change what is in it."""
    try:
        for folder in (path.parent, path):
            # one by one: the mode is not that of parents made on the way
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _is_private(path.parent) and _is_private(path)
    except (OSError, RuntimeError):
        return False


def _is_private(folder: Path) -> bool:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK):
        return False
    is_ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return is_ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
