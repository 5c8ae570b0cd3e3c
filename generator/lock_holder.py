"""Which process keeps a file locked, as Linux tells in /proc/locks; empty where it doesn't."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path

_LOCKS = Path("/proc/locks")
_VERB = re.compile(r"[a-z]{2,20}")


def lock_holder(descriptor: int) -> str:
    """Such as `` (apply, process 4711)``, to be put into a sentence."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        info = os.fstat(descriptor)
        device = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
        for line in _LOCKS.read_text(encoding="utf-8").splitlines():
            fields = line.split()  # 1: FLOCK ADVISORY WRITE <pid> <device> ...
            if fields[1] == "FLOCK" and fields[5] == device and int(fields[4]) > 0:
                return f" ({_verb(int(fields[4]))}process {fields[4]})"
    return ""


def _verb(pid: int) -> str:
    """The verb that an hf-triton runs, with a comma; its other arguments are nobody's business."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        for program, word in itertools.pairwise(words):
            is_ours = program.endswith(("hf-triton", "generator", "echo_cli"))
            if is_ours and _VERB.fullmatch(word):
                return f"{word}, "
    return ""
