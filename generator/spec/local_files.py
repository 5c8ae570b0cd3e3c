"""Checks a local model's folder for missing files; fingerprints it, to see it changed in place."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from generator.spec.model_spec import ModelSpec
from hf_triton.runtime.request.sample_values import sample_values
from hf_triton.runtime.weights.hub_files import (
    NotServableError,
    choose_adapter_files,
    choose_model_files,
)

# Parts of the names of files that tokenizers are made of.
_OF_TOKENIZERS = ("token", "vocab", "merges", "spiece", "sentencepiece", "tekken", "bpe")
_OF_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_WITH_MEDIA = ("image-text-to-text", "audio-text-to-text", "automatic-speech-recognition")


def missing_file(spec: ModelSpec) -> str:
    """A file without which a local model or adapter can't load; empty where none is missing."""
    folder, is_ours = spec.source.folder, sample_values(spec.task, "", "") is not None
    if folder is None or not is_ours or spec.gguf_file is not None:
        return ""
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    try:
        if spec.adapter is not None:
            choose_adapter_files(names, spec.allow_pickle)
            return ""
        choose_model_files(names, spec.allow_pickle)
    except NotServableError as error:
        return str(error)
    if "config.json" not in names:
        return "has no config.json"
    has_tokenizer = any(part in name for name in names for part in _OF_TOKENIZERS)
    if spec.task != "pipeline" and not has_tokenizer:
        return "has no tokenizer: neither tokenizer.json nor the files of a vocabulary"
    if spec.task in _WITH_MEDIA and not set(_OF_PROCESSORS).intersection(names):
        return f"has no processor: neither {' nor '.join(_OF_PROCESSORS)}"
    return ""


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
