"""Records the models that ``serve`` and ``apply`` last loaded: ``.hf-triton-served.json``. A
restarted tritonserver loads these, and ``apply --rollback`` takes back the last change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from generator.repository.compare import readable_errors
from generator.repository.staging import write as write_file
from hf_triton.runtime.regular_file import read_regular

RECORD_FILE = ".hf-triton-served.json"
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class LastChange:
    """The last apply: each changed folder's version before, ``routing`` and ``adapters`` the files
    from before (None: there was none), and the folders that it loaded and unloaded.
    """

    changed: Mapping[str, int] = field(default_factory=dict)
    routing: Mapping[str, str | None] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.changed or self.routing or self.adapters or self.added or self.removed)


@dataclass(frozen=True)
class LastApply:
    """Whether the last apply did all that it had to, and when it ended, in seconds since 1970."""

    is_good: bool
    at_s: float


@dataclass(frozen=True)
class ServedRecord:
    models: tuple[str, ...] = ()
    last: LastChange = LastChange()
    applied: LastApply | None = None


def read(repository: Path) -> ServedRecord | None:
    """The record; None where there is none, or what is there is none of ours."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        raw = read_regular(repository / RECORD_FILE, _MOST_BYTES)
        return msgspec.json.decode(raw, type=ServedRecord)
    return None


def write(repository: Path, record: ServedRecord) -> None:
    text = json.dumps(dataclasses.asdict(record), indent=2, sort_keys=True)
    with readable_errors():
        write_file(f"{repository}/{RECORD_FILE}", f"{text}\n".encode())


def write_models(repository: Path, models: Iterable[str]) -> None:
    """Sets the models that are to be served; the last change stays. Raises RepositoryError."""
    before = read(repository) or ServedRecord()
    write(repository, dataclasses.replace(before, models=tuple(sorted(models))))


def note_failed_apply(repository: Path) -> None:
    """Notes that an apply fails now, where a record says what is served. Raises RepositoryError."""
    before = read(repository)
    if before is not None:
        applied = LastApply(False, round(time.time(), 3))
        write(repository, dataclasses.replace(before, applied=applied))
