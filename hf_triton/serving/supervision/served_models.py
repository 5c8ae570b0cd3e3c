"""The entries that are to be served, and the Triton models (folders) of each.

First those that ``serve`` was started with; after an ``apply`` those in the repository's record.
Reads files only; knows no server.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.render import model_config
from hf_triton.tritonserver import state_file


@dataclass(frozen=True)
class _Entry:
    """An entry by its config.pbtxt."""

    folders: list[str]
    engine: str | None = None
    is_ours: bool = False
    load: str = "always"
    idle_s: float | None = None
    owner: str | None = None  # where it is an arm of another entry


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
        self._has_recorded = False

    def record(self) -> None:
        """Records in the repository what is served. Raises RepositoryError."""
        state_file.write_served(self.repository, self._names)
        self._has_recorded = True

    def names(self) -> list[str]:
        """The entries' names: from the record, if this server has written one."""
        file = self.repository / state_file.SERVED_FILE
        with contextlib.suppress(OSError):
            if self._has_recorded:
                found = file.stat()
                state = found.st_ino, found.st_size, found.st_mtime_ns
                record = _read_record(self.repository, state)
                if record is not None and set(record) != set(self._names):
                    self._names = list(record)
        return list(self._names)

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
        """The entry's ``load``: ``always``, ``on_demand`` or ``manual``. An arm is loaded with the
        entry whose arm it is.
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

    def _entry(self, model: str) -> _Entry:
        config = self.repository / model / "config.pbtxt"
        try:
            changed_at_ns = config.stat().st_mtime_ns
        except OSError:
            return _Entry([model])
        return _read(config, changed_at_ns)

    def model_of(self, folder: str) -> str | None:
        """The entry that a folder belongs to; None if it is not to be served."""
        return next((name for name in self.names() if folder in self.folders(name)), None)


@functools.lru_cache(maxsize=2)
def _read_record(repository: Path, _state: object) -> tuple[str, ...] | None:
    return state_file.served_models(repository)


@functools.lru_cache(maxsize=4096)
def _read(config: Path, _changed_at_ns: int) -> _Entry:
    engine = model_config.engine_of(config)
    folders = [*([engine] if engine else model_config.steps_of(config)), config.parent.name]
    is_ours, arm = model_config.is_ours(config), model_config.arm_of(config)
    return _Entry(folders, engine, is_ours, *model_config.load_of(config), arm)
