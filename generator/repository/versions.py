"""The numbered version folders of a model. Rendering knows only version 1; the current version is
the highest in the manifest, and what is rendered for 1 is written there. ``apply`` makes higher
ones, and keeps the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from generator.render import model_config
from generator.render.manifest import Manifest
from generator.spec.triton_models import LAUNCHER_FILE
from hf_triton.python_env.find_environment import ENVIRONMENT_FILE

RENDERED_VERSION = 1
# Triton ignores folders with a leading zero, and everything else that is no number.
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


def version_of(path: str) -> int | None:
    """The version that a path in a model's folder, such as ``3/model.py``, is a part of."""
    first, separator, _ = path.partition("/")
    return int(first) if separator and _VERSION.fullmatch(first) else None


def is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None


def current_version(paths: Iterable[str]) -> int:
    """The highest version that one of the paths is in; the rendered one where none is."""
    return max((found for path in paths if (found := version_of(path))), default=RENDERED_VERSION)


def renumbered_path(path: str, number: int) -> str:
    return f"{number}/{path.partition('/')[2]}"


def renumbered(files: Mapping[str, bytes], version: int, number: int) -> dict[str, bytes]:
    return {
        renumbered_path(path, number) if version_of(path) == version else path: content
        for path, content in files.items()
    }


def older_files(known: Manifest, version: int) -> dict[str, str]:
    older = [path for path in known if (found := version_of(path)) and found < version]
    started = {LAUNCHER_FILE} & set(known) if needs_launcher(older) else ()
    return {path: known[path] for path in (*older, *started)}


def needs_launcher(paths: Iterable[str]) -> bool:
    """Returns whether a version that has one of the paths has its own Python environment."""
    return any(path.endswith(f"/{ENVIRONMENT_FILE}") for path in paths)


def served_by(config: bytes, versions: Iterable[int]) -> set[int]:
    parsed: Any = model_config.parse(config.decode())
    policy, found = parsed.version_policy, sorted(versions, reverse=True)
    chosen = policy.WhichOneof("policy_choice")
    if chosen == "all":
        return set(found)
    if chosen == "specific":
        return set(found) & set(policy.specific.versions)
    return set(found[: policy.latest.num_versions or 1])
