"""The numbered version folders of a model: which is the current one, and where files go in it.

Rendering knows only version 1. A folder's current version is the highest that its manifest has
files in; what is rendered for 1 is written there. ``apply`` makes higher ones, and keeps the one
before with its own config.pbtxt in it. Knows no disk but the manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from generator.manifest import Manifest

RENDERED_VERSION = 1
# Triton ignores folders with a leading zero, and everything else that is no number.
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def version_of(path: str) -> int | None:
    """The version that a path in a model's folder, such as ``3/model.py``, is a part of."""
    first, separator, _ = path.partition("/")
    return int(first) if separator and _VERSION.fullmatch(first) else None


def is_version(name: str) -> bool:
    """Whether Triton takes a folder of that name for a version."""
    return _VERSION.fullmatch(name) is not None


def current_version(paths: Iterable[str]) -> int:
    """The highest version that one of the paths is in; the rendered one where none is."""
    return max((found for path in paths if (found := version_of(path))), default=RENDERED_VERSION)


def at_version(files: Mapping[str, bytes], version: int) -> dict[str, bytes]:
    """The rendered files under the paths that they have as ``version``."""
    if version == RENDERED_VERSION:
        return dict(files)
    rendered = f"{RENDERED_VERSION}/"
    return {
        f"{version}/{path.removeprefix(rendered)}" if path.startswith(rendered) else path: content
        for path, content in files.items()
    }


def older_files(known: Manifest, version: int) -> dict[str, str]:
    """The files of the versions below ``version``, with their hashes."""
    return {
        path: hash_
        for path, hash_ in known.files.items()
        if (found := version_of(path)) and found < version
    }
