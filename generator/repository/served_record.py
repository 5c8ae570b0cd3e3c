"""Records the models that ``serve`` and ``apply`` last loaded: ``.hf-triton-served.json``. A
restarted tritonserver loads these.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from generator.repository.compare import readable_errors
from generator.repository.staging import write as write_file
from hf_triton.runtime.regular_file import read_regular

RECORD_FILE = ".hf-triton-served.json"
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class ServedRecord:
    models: tuple[str, ...] = ()


def read(repository: Path) -> ServedRecord | None:
    """The record; None if it is missing or not ours."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        raw = read_regular(repository / RECORD_FILE, _MOST_BYTES)
        return msgspec.json.decode(raw, type=ServedRecord)
    return None


def write(repository: Path, models: Iterable[str]) -> None:
    """Raises RepositoryError."""
    text = json.dumps({"models": sorted(models)}, indent=2)
    with readable_errors():
        write_file(f"{repository}/{RECORD_FILE}", f"{text}\n".encode())
