"""The entries that are to be served, and the Triton models (folders) of each.

First those that ``serve`` was started with; after an ``apply`` those in the repository's record.
Reads files only; knows no server.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from generator.render import model_config
from generator.repository import served_record
from generator.repository.served_record import LastApply


class ServedModels:
    """The models of one server, by the names that models.yaml gives them."""

    def __init__(self, repository: Path, names: Sequence[str]) -> None:
        self.repository = repository
        self._names = list(names)
        self._has_record = False
        self._recorded_at_s = 0.0
        self._folders: dict[str, tuple[int, list[str], bool]] = {}

    def record(self) -> None:
        """Records in the repository what is served. Raises RepositoryError."""
        served_record.write_models(self.repository, self._names)
        self._has_record = True
        self._recorded_at_s = time.time()

    def names(self) -> list[str]:
        """The entries' names: from the record, if this server has written one."""
        record = served_record.read(self.repository) if self._has_record else None
        if record is not None and set(record.models) != set(self._names):
            self._names = list(record.models)
        return list(self._names)

    def last_apply(self) -> LastApply | None:
        """How the last apply ended, if there was one since this server started."""
        record = served_record.read(self.repository) if self._has_record else None
        applied = record.applied if record else None
        return applied if applied and applied.at_s >= self._recorded_at_s else None

    def folders(self, model: str) -> list[str]:
        """An entry's folders: its engine or steps first, then the public one."""
        return self._known(model)[1]

    def is_ours(self, model: str) -> bool:
        """Whether an entry's folders run our library."""
        return self._known(model)[2]

    def _known(self, model: str) -> tuple[int, list[str], bool]:
        config = self.repository / model / "config.pbtxt"
        try:
            changed_at = config.stat().st_mtime_ns
        except OSError:
            return 0, [model], False
        known = self._folders.get(model)
        if known is None or known[0] != changed_at:
            engine, is_ours = model_config.engine_of(config), model_config.is_ours(config)
            parts = [engine] if engine else model_config.steps_of(config)
            known = self._folders[model] = (changed_at, [*parts, model], is_ours)
        return known

    def model_of(self, folder: str) -> str | None:
        """The entry that a folder belongs to; None if it is not to be served."""
        return next((name for name in self.names() if folder in self.folders(name)), None)
