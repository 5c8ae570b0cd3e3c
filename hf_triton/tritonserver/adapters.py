"""Changes the adapters of a running model: writes its adapters.json and waits until each of its
processes serves them (hf_triton/text_generation/engine/adapters_following.py). Adapters
that a request has loaded stand in it with the time; models.yaml knows nothing of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from generator.errors import RepositoryError, ServerError
from generator.render.manifest import ADAPTERS_FILE, WEIGHTS_FOLDER
from generator.render.model_data import json_bytes
from generator.repository import writing as writer
from generator.repository.compare import Action, ModelPlan, compare, edited_hash, folder_version
from generator.repository.version_folders import current_files
from generator.repository.versions import renumbered_path

_POLL_S = 0.02
# Adapters of the Hub may have to be downloaded first.
_READ_WITHIN_S = 600.0
# A process that has just died is started again.
SHOWN_WITHIN_S = 30.0


class AdaptersRefusedError(ServerError):
    """A process can't serve the adapters."""


def changes_adapters(plan: ModelPlan) -> bool:
    """Returns whether the plan changes adapters.json, other than writing one that is missing."""
    path = renumbered_path(ADAPTERS_FILE, plan.version)
    found = (change for change in plan.changes if change.path == path)
    return any(change.action not in (Action.IDENTICAL, Action.CREATE) for change in found)


def change_list(folder: Path, model: str, edit: Callable[[Any], Any]) -> None:
    """Has ``model``, whose engine's folder this is, serve what ``edit`` makes of the list in
    adapters.json. Raises RepositoryError, and ServerError as ``change``.
    """
    files = current_files(folder)
    listed = edit(json.loads(files.get(ADAPTERS_FILE, b"[]")))
    files = {**files, ADAPTERS_FILE: json_bytes(listed)}
    kept = edited_hash(folder, folder_version(folder))
    plan = compare(folder, files, keep_edits=False, written=kept)
    if plan.conflicts:
        raise RepositoryError("; ".join(plan.conflicts))
    change(plan, model)


def change(plan: ModelPlan, model: str) -> None:
    """Writes the folder's files and waits until ``model`` serves what they say. Raises ServerError
    after what was there was put back, an AdaptersRefusedError where a process can't serve them.
    """
    before = current_files(plan.folder)
    writer.apply(plan)
    try:
        _wait_served(plan, model)
    except ServerError as error:
        kept = edited_hash(plan.folder, plan.version)
        writer.apply(compare(plan.folder, before, keep_edits=False, written=kept))
        with contextlib.suppress(ServerError):
            _wait_served(plan, model)  # until every process is back at them
        raise type(error)(f"{error}; the previous adapters stay in use") from None


def _wait_served(plan: ModelPlan, model: str) -> None:
    path = plan.folder / renumbered_path(ADAPTERS_FILE, plan.version)
    wanted = hashlib.sha256(path.read_bytes()).hexdigest()
    statuses = plan.folder.parent / model / WEIGHTS_FOLDER / "adapters"
    began = time.monotonic()
    while True:
        found = list(_statuses(statuses, f"{plan.name}-{plan.version}-*.json"))
        if found and all(status.get("read") == wanted for status in found):
            for refusal in (str(status.get("refusal", "")) for status in found):
                if refusal:
                    raise AdaptersRefusedError(refusal)
            return
        waited_s = time.monotonic() - began
        if not found and waited_s > SHOWN_WITHIN_S:
            raise ServerError(f"{plan.name}: no process reports that it watches {path.name}")
        if waited_s > _READ_WITHIN_S:
            raise ServerError(f"{plan.name}: not read within {_READ_WITHIN_S:.0f} s: {path.name}")
        time.sleep(_POLL_S)


def _statuses(folder: Path, pattern: str) -> Iterator[Mapping[str, Any]]:
    """Yields the last status of each process that runs, {} where it has written none yet."""
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(OSError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:  # the process that has made it runs
                found = None
                with contextlib.suppress(ValueError):
                    found = json.loads(file.read())
                yield found if isinstance(found, dict) else {}
