"""Reads ``model.json``: the Hugging Face model that a Triton model serves, as the generator
resolved it from an entry of models.yaml. A task builds its own ``Options`` from ``options``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from ..errors import not_as_generated
from .locked_files import LockedFile

Options = TypeVar("Options")
_FILE = "model.json"
ADAPTERS_FILE = "adapters.json"


@dataclass(frozen=True)
class ServedAdapter:
    """A LoRA adapter of a model: what requests call it, and where it comes from. ``loaded_at`` is
    when a request loaded it, None of one in models.yaml; ``look`` differs where its local files do.
    """

    name: str
    model: str
    local: bool
    revision: str | None
    locked_files: dict[str, LockedFile] | None = None
    loaded_at: float | None = None
    look: str = ""


@dataclass(frozen=True)
class ServedModel:
    """The content of model.json. ``folder`` is the Triton model's folder, ``model`` the Hugging
    Face model: a Hub id or a local path.

    ``public_name`` is the entry's name in models.yaml, ``name`` that of the Triton model, which may
    have a suffix. ``decoupled``: it may answer a request with many responses. ``hooks`` is the
    path of the user's file, which lies beside model.py as hooks.py; ``metrics`` are those that the
    hooks may observe, by name: type, help, labels and buckets. ``role`` is the step of an ensemble
    that this is, ``pad_to_multiple_of`` the multiple that the tokenizer pads rows to. If
    models.lock pins the model, ``revision`` is the locked commit and ``locked_files`` are all its
    files. ``is_adapter``: ``model`` is an adapter. ``quantization`` is a method and its arguments,
    or None for weights as they were saved. ``adapters_file`` has the adapters of a model that takes
    others while it serves. ``gguf_file`` is the one file that is loaded of the model; ``model`` is
    its path where it is local.
    """

    folder: Path
    name: str
    task: str
    model: str
    local: bool
    revision: str | None
    dtype: str
    device_map: str | None
    trust_remote_code: bool
    max_batch_size: int
    options: dict[str, Any]
    public_name: str
    decoupled: bool
    hooks: str | None = None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    response_cache_mib: int | None = None
    role: str = "whole"
    pad_to_multiple_of: int = 1
    allow_pickle: bool = False
    allow_missing_weights: bool = False
    locked_files: dict[str, LockedFile] | None = None
    adapters: tuple[ServedAdapter, ...] = ()
    is_adapter: bool = False
    quantization: dict[str, Any] | None = None
    adapters_file: Path | None = None
    gguf_file: str | None = None

    def read_options(self, options_class: Callable[..., Options]) -> Options:
        """The options as the task declares them. Raises LoadError where it knows others."""
        try:
            return options_class(**self.options)
        except TypeError as error:
            raise not_as_generated(_FILE, error) from error

    @property
    def cache_dir(self) -> Path:
        """The Hub's cache, in the entry's folder: it stays when ``streaming`` changes."""
        return self.folder.parent / self.public_name / "hf_cache"

    @property
    def source(self) -> str:
        """The Hugging Face model, with its revision, for log lines and errors."""
        if self.local:
            return self._real_path.decode("utf-8", "replace")
        return self.model if self.revision is None else f"{self.model}@{self.revision}"

    @property
    def local_path(self) -> Path:
        """The folder of a local Hugging Face model; a relative path is relative to ``folder``."""
        return Path(_openable(self._real_path))

    @property
    def _real_path(self) -> bytes:
        path = os.path.join(self.folder, self.model)  # noqa: PTH118, no Path has these letters
        return os.path.realpath(path.encode("utf-8", "surrogateescape"))


@lru_cache
def _openable(path: bytes) -> str:
    """Triton's Python encodes ASCII alone: another letter's path is a descriptor of the folder."""
    if path.isascii() or sys.getfilesystemencoding() == "utf-8":
        return os.fsdecode(path)
    try:
        return f"/proc/{os.getpid()}/fd/{os.open(path, os.O_PATH)}"
    except OSError:  # missing: opening it reports that
        return path.decode("ascii", "backslashreplace")


def read_served_model(folder: Path, version: str) -> ServedModel:
    """Raises LoadError for a file that is not as the generator writes it."""
    path = folder / version / _FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        served = ServedModel(folder=folder, **values)
        file = values.get("adapters_file")
        file = file and path.with_name(file)
        adapters = json.loads(file.read_bytes()) if file else values.get("adapters", ())
        return replace(
            served,
            locked_files=_locked(served.locked_files),
            adapters=_adapters(adapters),
            adapters_file=file,
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise not_as_generated(_FILE, error) from error


def parse_adapters(content: bytes) -> tuple[ServedAdapter, ...]:
    """Reads adapters.json. Raises LoadError where it is not as the generator writes it."""
    try:
        return _adapters(json.loads(content))
    except (ValueError, TypeError, AttributeError) as error:
        raise not_as_generated(ADAPTERS_FILE, error) from error


def _adapters(values: Any) -> tuple[ServedAdapter, ...]:
    adapters = (ServedAdapter(**value) for value in values)
    return tuple(replace(one, locked_files=_locked(one.locked_files)) for one in adapters)


def _locked(files: Any) -> dict[str, LockedFile] | None:
    return files and {name: LockedFile(**file) for name, file in files.items()}
