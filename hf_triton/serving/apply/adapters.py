"""Changes the adapters of a running model: writes its adapters.json and waits until each of its
processes serves them (hf_triton/text_generation/engines/in_flight/adapters_following.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from generator.errors import ServerError
from generator.render.digest import ADAPTERS_FILE
from generator.render.manifest import WEIGHTS_FOLDER
from generator.repository import writing as writer
from generator.repository.compare import Action, ModelPlan, compare, edited_hash
from generator.repository.version_folders import current_files
from generator.repository.versions import renumbered_path

_POLL_S = 0.02
# Adapters of the Hub may have to be downloaded first.
_READ_WITHIN_S = 600.0
# A process that has just died is started again.
_SHOWN_WITHIN_S = 30.0


def changes_adapters(plan: ModelPlan) -> bool:
    """Whether the folder's adapters.json is to be another; not where it is missing on disk only."""
    path = renumbered_path(ADAPTERS_FILE, plan.version)
    found = (change for change in plan.changes if change.path == path)
    return any(change.action not in (Action.IDENTICAL, Action.CREATE) for change in found)


def change(plan: ModelPlan, model: str) -> str:
    """Writes the folder's files and waits until ``model`` serves what they say; returns its
    adapters.json from before. Raises ServerError after what was there was put back.
    """
    before = current_files(plan.folder)
    writer.apply(plan)
    refusal = _refusal(plan, model)
    if refusal:
        kept = edited_hash(plan.folder, plan.version)
        writer.apply(compare(plan.folder, before, keep_edits=False, written=kept))
        _refusal(plan, model)  # until every process is back at them
        raise ServerError(f"{refusal}; the adapters before go on")
    return before[ADAPTERS_FILE].decode()


def _refusal(plan: ModelPlan, model: str) -> str:
    """Waits until each process has read adapters.json; returns why one does not serve it."""
    path = plan.folder / renumbered_path(ADAPTERS_FILE, plan.version)
    wanted = hashlib.sha256(path.read_bytes()).hexdigest()
    statuses = plan.folder.parent / model / WEIGHTS_FOLDER / "adapters"
    began = time.monotonic()
    while True:
        found = list(_said(statuses, f"{plan.name}-{plan.version}-*.json"))
        if found and all(one.get("read") == wanted for one in found):
            return next(filter(None, (str(one.get("refusal", "")) for one in found)), "")
        if not found and time.monotonic() - began > _SHOWN_WITHIN_S:
            return f"{plan.name}: none of its processes says that it follows {path.name}"
        if time.monotonic() - began > _READ_WITHIN_S:
            return f"{plan.name}: not read within {_READ_WITHIN_S:.0f} s: {path.name}"
        time.sleep(_POLL_S)


def _said(folder: Path, pattern: str) -> Iterator[Mapping[str, Any]]:
    """What each process that runs has said last; of one that has said nothing yet, nothing."""
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if _is_locked(file):
                yield _parsed(file.read())


def _is_locked(file: IO[bytes]) -> bool:
    """Whether the process that has made the file runs."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _parsed(content: bytes) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError):
        found = json.loads(content)
        return found if isinstance(found, dict) else {}
    return {}
