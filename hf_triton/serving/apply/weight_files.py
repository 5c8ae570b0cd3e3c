"""How large the weights of a model are that was not loaded before: by its files, if they are there.

Knows the layout of Hugging Face models: config.json, and model.safetensors or the parts that
model.safetensors.index.json names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.runtime_rules import repository_folder, snapshot_folder
from generator.yaml_file.regular_file import read_json

_WHOLE = "model.safetensors"
_INDEX = f"{_WHOLE}.index.json"
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def weight_bytes(folder: Path, values: Mapping[str, Any]) -> int:
    """Bytes of the weights in memory, of the model that ``values`` of a model.json in the Triton
    model's ``folder`` say, and of its draft model; 0 where that is not known: the files are not
    there yet, or the weights are quantized as they are loaded.
    """
    own, draft = _own_bytes(folder, values), values.get("draft_model")
    return own + _own_bytes(folder, {**values, **draft}) if own and draft else own


def _own_bytes(folder: Path, values: Mapping[str, Any]) -> int:
    if values.get("quantization"):
        return 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        files = _files(folder, values)
        size = sum((files / name).stat().st_size for name in _names(files))
        return int(size * _growth(files, values["dtype"]))
    return 0


def _files(folder: Path, values: Mapping[str, Any]) -> Path:
    """The folder of the model's files. Raises OSError, KeyError."""
    if values["local"]:
        return Path(folder, values["model"]).resolve()
    cache = folder.parent / values["public_name"] / WEIGHTS_FOLDER
    revision = values["revision"] or "main"
    ref = repository_folder(cache, values["model"]) / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    return snapshot_folder(cache, values["model"], commit)


def _names(files: Path) -> set[str]:
    if not (files / _INDEX).is_file():
        return {_WHOLE}
    index = read_json(files / _INDEX)
    return set(index["weight_map"].values())


def _growth(files: Path, dtype: str) -> float:
    """How much larger than in the files the weights are in ``dtype``."""
    config = read_json(files / "config.json")
    stored = config.get("dtype", config.get("torch_dtype"))
    if dtype not in _ITEM_BYTES or stored not in _ITEM_BYTES or "quantization_config" in config:
        return 1.0
    return _ITEM_BYTES[dtype] / _ITEM_BYTES[stored]
