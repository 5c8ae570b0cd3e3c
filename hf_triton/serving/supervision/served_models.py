"""The entries that are to be served, and the Triton models (folders) of each.

First those that ``serve`` was started with; after an ``apply`` those in the repository's record.
Reads files only; knows no server.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from generator.render import model_config
from generator.repository import served_record
from generator.repository.served_record import LastApply, ServedRecord

_FRESH_S = 0.2  # a look at everything asks of each several times


@dataclass
class _Entry:
    """What an entry's config.pbtxt says, which was changed at this time, in ns."""

    changed_at: int
    folders: list[str]
    engine: str | None = None
    is_ours: bool = False
    load: str = "always"
    idle_s: float | None = None
    owner: str | None = None  # where it is an arm of another entry
    seen_at_s: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class OnDemandEntry:
    """An entry that may go when nobody asks it for ``idle_s``; ``entries`` are its arms and itself,
    ``folders`` those of all, in the order in which they are loaded.
    """

    idle_s: float | None
    entries: list[str]
    folders: list[str]


class ServedModels:
    def __init__(self, repository: Path, names: Sequence[str]) -> None:
        self.repository = repository
        self._names = list(names)
        self._recorded_at_s = 0.0
        self._last_read: tuple[object, ServedRecord | None] = None, None  # with the file's state
        self._entries: dict[str, _Entry] = {}
        self._looks_since_s = 0.0  # nothing seen before counts

    def record(self) -> None:
        """Records in the repository what is served. Raises RepositoryError."""
        served_record.write(self.repository, self._names)
        self._recorded_at_s = time.time()

    def names(self) -> list[str]:
        """The entries' names: from the record, if this server has written one."""
        record = self._record()
        if record is not None and set(record.models) != set(self._names):
            self._names = list(record.models)
        return list(self._names)

    def last_apply(self) -> LastApply | None:
        """How the last apply ended, if there was one since this server started."""
        record = self._record()
        applied = record.applied if record else None
        return applied if applied and applied.at_s >= self._recorded_at_s else None

    def _record(self) -> ServedRecord | None:
        """The record, which is read again only where it is another file."""
        if not self._recorded_at_s:
            return None
        try:
            found = (self.repository / served_record.RECORD_FILE).stat()
        except OSError:
            return None
        state = found.st_ino, found.st_size, found.st_mtime_ns
        known, record = self._last_read
        if record is None or known != state:
            record = served_record.read(self.repository)
            self._last_read = state, record
        return record

    def folders(self, model: str) -> list[str]:
        """An entry's folders: its engine or steps first, then the public one."""
        return self._entry(model).folders

    def load_order(self, model: str) -> list[str]:
        """The folders that are loaded for an entry, one after the other: Triton itself loads an
        ensemble's steps, in parallel, before the ensemble.
        """
        engine = self._entry(model).engine
        return [engine, model] if engine else [model]

    def is_ours(self, model: str) -> bool:
        return self._entry(model).is_ours

    def load(self, model: str) -> str:
        """When an entry is loaded: ``always``, ``on_demand`` or ``manual``. Arms of another one are
        loaded with that.
        """
        entry = self._entry(model)
        return self._entry(entry.owner).load if entry.owner else entry.load

    def always(self) -> list[str]:
        return [name for name in self.names() if self.load(name) == "always"]

    def on_demand(self) -> dict[str, OnDemandEntry]:
        """The entries that are loaded on demand, each with the arms that go with it."""
        entries = {name: self._entry(name) for name in self.names()}
        found: dict[str, OnDemandEntry] = {}
        arms = defaultdict[str, list[str]](list)
        for name, entry in entries.items():
            arms[entry.owner or ""].append(name)
        for name, entry in entries.items():
            if entry.load == "on_demand" and entry.owner not in entries:
                parts = [*arms[name], name]
                folders = [folder for part in parts for folder in entries[part].folders]
                found[name] = OnDemandEntry(entry.idle_s, parts, folders)
        return found

    def look_again(self) -> None:
        """Reads again what is asked next: an apply may have changed it just now."""
        self._looks_since_s = time.monotonic()

    def _entry(self, model: str) -> _Entry:
        known, now = self._entries.get(model), time.monotonic()
        if known is not None and known.seen_at_s > max(self._looks_since_s, now - _FRESH_S):
            return known
        config = self.repository / model / "config.pbtxt"
        try:
            changed_at = config.stat().st_mtime_ns
        except OSError:
            return _Entry(0, [model])
        if known is not None and known.changed_at == changed_at:
            known.seen_at_s = now
        else:
            engine = model_config.engine_of(config)
            parts = [engine] if engine else model_config.steps_of(config)
            load, idle_s = model_config.load_of(config)
            known = self._entries[model] = _Entry(
                changed_at,
                [*parts, model],
                engine,
                model_config.is_ours(config),
                load,
                idle_s,
                model_config.arm_of(config),
            )
        return known

    def model_of(self, folder: str) -> str | None:
        """The entry that a folder belongs to; None if it is not to be served."""
        return next((name for name in self.names() if folder in self.folders(name)), None)
