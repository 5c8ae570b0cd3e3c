"""Fingerprints a local model's folder, to see it changed in place."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from generator.spec.model_spec import ModelSpec


def fingerprint(spec: ModelSpec) -> str:
    """Fingerprints local files, such as ``3 files, 123 bytes, newest 2026-01-01T00:00:00Z,
    1a2b3c4d``; empty where there are none. Times are whole seconds: layers of images keep no more.
    """
    folder = spec.source.folder
    seen: list[tuple[str, int, int]] = []
    for path in () if folder is None else _files(folder):
        with contextlib.suppress(OSError):  # gone meanwhile
            found = path.stat()
            name = os.path.relpath(path, folder)
            seen.append((name, found.st_size, int(found.st_mtime)))
    if not seen:
        return ""
    newest = datetime.fromtimestamp(max(seconds for *_, seconds in seen), timezone.utc)
    digest = hashlib.sha256(repr(seen).encode()).hexdigest()[:8]
    size = sum(size for _, size, _ in seen)
    return f"{len(seen)} files, {size} bytes, newest {newest:%Y-%m-%dT%H:%M:%SZ}, {digest}"


def _files(folder: Path) -> Iterator[Path]:
    """The files that a model may be loaded from, those of sentence-transformers' modules too."""
    if folder.is_file():
        yield folder
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # gone meanwhile: a load tells
        return
    for entry in entries:
        if entry.is_file() and not entry.name.startswith(".") and not entry.name.endswith(".md"):
            yield Path(entry.path)
        elif entry.is_dir() and entry.name[0].isdigit():
            yield from (path for path in sorted(Path(entry.path).iterdir()) if path.is_file())
