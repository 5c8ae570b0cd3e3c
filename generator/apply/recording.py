"""What an apply leaves behind in the repository: which models are served, and what it changed."""

from __future__ import annotations

import time
from pathlib import Path

from generator import served_record
from generator.apply.applying import Applied
from generator.apply.planning import ApplyPlan
from generator.served_record import LastApply, LastChange, ServedRecord


class Recorder:
    """Of one apply. ``is_whole`` says that the plan names every model that is wanted; one that does
    not leaves those that it does not name as they are.
    """

    def __init__(self, repository: Path, plan: ApplyPlan, *, is_whole: bool) -> None:
        self._repository, self._plan, self._is_whole = repository, plan, is_whole
        self._before = served_record.read(repository) or ServedRecord()

    def record(self, applied: Applied, change: LastChange) -> None:
        """Says what is served from here on; ``change`` is what a rollback takes back. Raises
        RepositoryError.
        """
        self._write(applied, change if applied.has_changed else self._before.last)

    def record_rollback(self, applied: Applied) -> None:
        """The same; what is taken back, all of it, can't be taken back again. Raises
        RepositoryError.
        """
        self._write(applied, LastChange() if applied.is_good else self._before.last)

    def _write(self, applied: Applied, last: LastChange) -> None:
        ended = LastApply(applied.is_good, round(time.time(), 3))
        models = tuple(sorted(self._models(applied)))
        served_record.write(self._repository, ServedRecord(models, last, ended))

    def _models(self, applied: Applied) -> set[str]:
        loaded = {name for outcome in applied.outcomes for name in outcome.loaded}
        before = set(self._before.models)
        groups = {group.name: group for group in self._plan.groups}
        kept = before & set(groups) if self._is_whole else before
        served = {
            name
            for name, group in groups.items()
            if name in loaded or group.folders[0].served.ready
        }
        return (kept | served) - {removed.name for removed in self._plan.removed}
