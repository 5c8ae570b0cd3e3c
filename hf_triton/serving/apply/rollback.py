"""Plans the rollback of the last apply: folders that it changed get their previous version again,
models that it added are removed, models that it removed are loaded again. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from generator.errors import RepositoryError
from generator.render.digest import ROUTING_FILE
from generator.repository import served_record
from generator.repository.compare import ModelPlan, compare, edited_hash, folder_version
from generator.repository.served_record import LastChange, ServedRecord
from generator.repository.version_folders import current_files, files_of_version
from hf_triton.serving.apply.changes import decide_group, model_of_folder, split_unwanted
from hf_triton.serving.apply.model_control import ModelControl
from hf_triton.serving.apply.planning import ApplyPlan


def plan_rollback(repository: Path, control: ModelControl) -> ApplyPlan:
    """The plan. Raises RepositoryError if there is nothing to undo, or its files are gone."""
    last = (served_record.read(repository) or ServedRecord()).last
    if last.is_empty:
        raise RepositoryError(
            f"{repository}: nothing to roll back: no apply has changed anything, or the last one "
            "is rolled back already"
        )
    active = [name for name in control.active_folders() if (repository / name).is_dir()]
    groups = _groups(last, set(active) - set(last.added))
    obsolete, removed = split_unwanted(set(last.added) & set(active), groups)
    served = control.served({name for folders in groups.values() for name in folders})
    decided = tuple(
        decide_group(_plans(folders, repository, last), served, obsolete.get(name, ()), force=True)
        for name, folders in groups.items()
    )
    return ApplyPlan(decided, tuple(removed))


def _groups(last: LastChange, active: set[str]) -> dict[str, list[str]]:
    """Every folder of the models that were changed or removed, the public one first."""
    touched = {*last.changed, *last.routing, *last.removed}
    folders = touched | active
    models = sorted({model_of_folder(name, folders) for name in touched})
    return {
        model: [
            model,
            *sorted(
                name
                for name in folders
                if name != model and model_of_folder(name, folders) == model
            ),
        ]
        for model in models
    }


def _plans(folders: Iterable[str], repository: Path, last: LastChange) -> list[ModelPlan]:
    return [_plan(repository / name, last) for name in folders]


def _plan(folder: Path, last: LastChange) -> ModelPlan:
    files, version = current_files(folder), folder_version(folder)
    routing = files.pop(ROUTING_FILE, None)
    if folder.name in last.changed:
        version = last.changed[folder.name]
        before = files_of_version(folder, version)
        if before is None:
            raise RepositoryError(
                f"{folder}: version {version}, which ran before the last apply, is not there any "
                "more as it was: change models.yaml back instead, and apply that"
            )
        files = before
    if folder.name in last.routing:
        text = last.routing[folder.name]
        routing = None if text is None else text.encode()
    files = files if routing is None else {**files, ROUTING_FILE: routing}
    return compare(folder, files, keep_edits=False, written=edited_hash(folder, version))
