"""Models that are folders on this machine: where a cluster finds them, and where it can't."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from generator.errors import Problem, SpecError
from generator.spec import ModelSpec

_ADVICE = (
    "is a folder on this machine, which a cluster does not have: use a model on the Hub, or put it "
    "into the image or a volume, and say with --local-models where relative paths start there"
)


def refuse_local(
    config: Path, specs: Sequence[ModelSpec], base: str | None, claim: str | None
) -> None:
    """Raises SpecError for every local model that pods would not find."""
    problems = []
    for part in (part for spec in specs for part in spec.parts):
        place = part.places["model"]
        if not part.source.is_local:
            continue
        written = str(place.value)
        if base is None:
            message = f"'{written}' {_ADVICE}"
        elif written.startswith("~"):
            message = f"'{written}' starts at a home folder, which pods don't have"
        elif claim and not _is_inside(posixpath.join(base, written), base):
            message = f"'{written}' lies outside of --local-models {base}, where the claim is"
        else:
            continue
        problems.append(Problem(place.line, place.column, place.where, message))
    if problems:
        raise SpecError(str(config), problems)


def _is_inside(path: str, folder: str) -> bool:
    return posixpath.commonpath([posixpath.normpath(path), folder]) == folder
