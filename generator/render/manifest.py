"""The manifest of a model folder: which files are ours, and the hash each was written with."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import msgspec

MANIFEST_FILE = ".hf-triton.json"
WEIGHTS_FOLDER = "hf_cache"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@functools.lru_cache(maxsize=8192)
def digest(content: bytes) -> str:
    """The SHA-256 of a file's content; a thousand models share most of their files."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Manifest:
    """Paths are relative to the model's folder, with ``/``; hashes are SHA-256 in hex."""

    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> frozenset[str]:
        """Every path that may hold a file of ours."""
        return frozenset(self.files)

    def wrote(self, path: str, content: bytes) -> bool:
        """Whether this content of the file at ``path`` is what we wrote."""
        return self.files.get(path) == digest(content)

    def to_bytes(self) -> bytes:
        """The file's content: sorted, without anything that changes from run to run."""
        # msgspec, because json indents in Python: a thousand models are compared in a second.
        text = json.dumps({"files": dict(self.files)}, sort_keys=True)
        return (msgspec.json.format(text) + "\n").encode()


def parse(raw: bytes) -> Manifest:
    """The manifest that ``raw`` holds. Raises ValueError for anything that we would not write."""
    try:
        files = dict(json.loads(raw)["files"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a manifest") from error
    for path in files:
        if not is_safe_path(path):
            raise ValueError(f"{path!r} is not a path inside the model's folder")
    for known in files.values():
        if not isinstance(known, str) or not _SHA256.fullmatch(known):
            raise ValueError(f"{known!r} is not a SHA-256")
    return Manifest(files)


@functools.lru_cache(maxsize=8192)
def is_safe_path(path: object) -> bool:
    """Whether ``path`` stays inside the model's folder and out of its weights."""
    if not isinstance(path, str) or "\0" in path or "\\" in path:
        return False
    parts = PurePosixPath(path).parts
    return (
        "/".join(parts) == path
        and ".." not in parts
        and bool(parts)
        and parts[0] not in (WEIGHTS_FOLDER, MANIFEST_FILE, "/")
    )
