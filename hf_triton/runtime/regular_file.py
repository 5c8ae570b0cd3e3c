"""Reads a file that a user or a model's repository names: only regular files, for a pipe or a
device could be waited for, or read, for ever. Imports nothing of the runtime.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_JSON_BYTES = 64 * 2**20  # tokenizers have up to 30 MiB
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Raises OSError, whose ``strerror`` is the reason, also for more than ``most_bytes``."""
    check_regular(path, most_bytes)
    # Does not block if a pipe has replaced the file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_large(path, most_bytes)
    return content


def check_regular(path: Path, most_bytes: int | None = None) -> None:
    """Raises OSError as ``read_regular``, and opens nothing."""
    found = path.stat()
    mode = found.st_mode
    if not stat.S_ISREG(mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "a device")
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, f"it is {kind}, expected a regular file", str(path))
    if most_bytes is not None and found.st_size > most_bytes:
        raise _too_large(path, most_bytes)


def read_json(path: Path) -> Any:
    """Raises OSError as ``read_regular``, and ValueError for invalid JSON."""
    try:
        return json.loads(read_regular(path, MOST_JSON_BYTES))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _too_large(path: Path, most_bytes: int) -> OSError:
    most = f"{most_bytes >> 20} MiB" if most_bytes >= 2**20 else f"{most_bytes >> 10} KiB"
    return OSError(errno.EFBIG, f"it is larger than {most}", str(path))
