"""Changes several Triton models of one entry at once, where no request may meet old and new ones.

In an ensemble Triton uses each step's highest version as soon as it is ready, and steps take
different times to load: meanwhile the new tokenizer could feed the old model. So the ensemble is
first pinned to the old versions; both versions of every changed step are loaded; the ensemble
switches to the new ones, which takes a moment; then the old versions are unloaded. A front and an
engine that use different versions of the link's protocol are changed likewise: the old front keeps
its engine until the new front is ready.

Triton 24.10 reloads every version of a model whose config changes: for a while a step or an engine
is loaded three times.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from generator.errors import GeneratorError, ServerError
from generator.render import model_config
from generator.render.manifest import DIGEST_PARAMETER
from generator.repository.version_folders import drop_last_version, replace_config
from generator.spec.triton_models import LINK_PARAMETER
from hf_triton.serving.apply.changes import FolderAction, FolderChange, GroupChange
from hf_triton.serving.apply.model_control import ModelControl

# As config.pbtxt of ours has it; one of an earlier hf-triton has none.
_LINK_VERSION = re.compile(rb'"%s"[^"]*"(\d+)"' % LINK_PARAMETER.encode())
_ENSEMBLE = b'platform: "ensemble"'
_Write = Callable[[FolderChange], None]


def is_needed(group: GroupChange) -> bool:
    """Whether the entry has several folders, and some that change must change together."""
    whole, *parts = group.folders
    if not parts or not all(folder.served.ready for folder in group.folders):
        return False
    replaced = [part for part in parts if part.action is FolderAction.REPLACE]
    several = len(replaced) > 1 or (replaced and whole.action is FolderAction.REPLACE)
    return bool(several) and (_is_ensemble(whole) or any(map(_changes_link, replaced)))


def _is_ensemble(whole: FolderChange) -> bool:
    return _ENSEMBLE in whole.config and _ENSEMBLE in whole.config_before


def _changes_link(part: FolderChange) -> bool:
    """Whether the fronts that run now can't connect to the new engine."""
    before, after = part.config_before, part.config
    return _LINK_VERSION.findall(before) != _LINK_VERSION.findall(after)


@dataclass(frozen=True)
class AtomicSwitch:
    """The switch of one entry's folders. ``write`` writes a folder's new version."""

    group: GroupChange
    control: ModelControl
    write: _Write

    @property
    def whole(self) -> FolderChange:
        """The ensemble itself, or the front."""
        return self.group.folders[0]

    @property
    def steps(self) -> list[FolderChange]:
        """The steps, or the engine, that change."""
        return [step for step in self.group.folders[1:] if step.action is FolderAction.REPLACE]

    def switch_over(self) -> None:
        """Loads the new versions and switches to them. Raises ServerError or RepositoryError after
        everything was put back.
        """
        config = self.whole.config_before
        try:
            if _is_ensemble(self.whole):
                self._load_pinned(config)
            for step in self.steps:
                self.write(step)
                self._load_both(step)
            replace_config(self.whole.plan.folder, config)
            if self.whole.action is FolderAction.REPLACE:
                self.write(self.whole)
            self._load(self.whole, self.whole.number)
        except (GeneratorError, OSError):
            self._roll_back(config)
            raise

    def retire_old(self, timeout_s: float) -> None:
        """Unloads the old versions, once the old ensemble or front has answered its requests.
        Raises ServerError, RepositoryError.
        """
        going = self.whole.served.active - {self.whole.number}
        if self.control.wait_gone(self.whole.name, going, timeout_s):
            raise ServerError(f"{self.whole.name} still has requests after {timeout_s:g} s")
        for step in self.steps:
            replace_config(step.plan.folder, step.config)
            self._load(step, step.number)

    def _load_pinned(self, config: bytes) -> None:
        folders = self.group.folders[1:]
        pins = {folder.name: max(folder.served.ready) for folder in folders}
        replace_config(self.whole.plan.folder, pinned(config, pins))
        self._load(self.whole, max(self.whole.served.ready))

    def _load_both(self, step: FolderChange) -> None:
        versions = max(step.served.ready), step.number
        replace_config(step.plan.folder, with_versions(step.config, *versions))
        self._load(step, step.number)

    def _load(self, folder: FolderChange, version: int) -> None:
        failure = self.control.load(folder.name, version)
        if failure is not None:
            raise ServerError(f"{folder.name}: {failure}")

    def _roll_back(self, config: bytes) -> None:
        """Puts everything back; the steps first, while the ensemble is pinned to their old
        versions.
        """
        for step in self.steps:
            drop_last_version(step.plan.folder, step.number)
        if self.whole.action is FolderAction.REPLACE:
            drop_last_version(self.whole.plan.folder, self.whole.number)
        replace_config(self.whole.plan.folder, config)
        with contextlib.suppress(ServerError):  # it went away, and loads what is on disk
            for folder in (*self.steps, self.whole):
                self.control.load(folder.name, max(folder.served.ready))


def pinned(config: bytes, versions: Mapping[str, int]) -> bytes:
    """An ensemble's config.pbtxt with each step's version fixed. It has no digest, so that an apply
    that was interrupted here does not take it for the wanted state.
    """
    parsed: Any = model_config.parse(config.decode())
    for step in parsed.ensemble_scheduling.step:
        step.model_version = versions[step.model_name]
    return _without_digest(parsed)


def with_versions(config: bytes, *versions: int) -> bytes:
    """A config.pbtxt that serves exactly these versions; without a digest, as ``pinned``."""
    parsed: Any = model_config.parse(config.decode())
    parsed.version_policy.specific.versions[:] = sorted(versions)
    return _without_digest(parsed)


def _without_digest(parsed: Any) -> bytes:
    parsed.parameters.pop(DIGEST_PARAMETER, None)
    return model_config.as_text(parsed).encode()
