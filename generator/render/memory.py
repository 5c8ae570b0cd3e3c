"""Estimates a model's memory before it is loaded: its processes, and its weights by their files or
by models.lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from generator.render import model_config
from generator.render.manifest import WEIGHTS_FOLDER
from generator.spec.triton_models import WITHOUT_WEIGHTS
from hf_triton.runtime.regular_file import read_json
from hf_triton.runtime.weights.hub_files import NotServableError, choose_model_files
from hf_triton.runtime.weights.locked_files import cached_snapshot

_SINGLE_FILE = "model.safetensors"
_INDEX = f"{_SINGLE_FILE}.index.json"
_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_ENDINGS = (".safetensors", ".bin", ".gguf")
# From 4 bits a weight to float32, on a GPU to bfloat16.
_GGUF_GROWTH = {False: 8, True: 4}
# Python, torch and transformers in one process, before any weights.
PROCESS_BYTES = 250 * 2**20
FRONT_BYTES = 60 * 2**20
CPU = "cpu"


def folder_bytes(
    folder: Path,
    values: Mapping[str, Any],
    gpus: Sequence[str] = (),
    groups: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """``groups`` are its instance groups, if they are not those of its config.pbtxt."""
    if not values:
        return {CPU: FRONT_BYTES}
    if groups is None:
        groups = model_config.instance_groups(folder / "config.pbtxt")
    size: dict[str, float] = {CPU: 0.0}
    for device, count in copies(groups, gpus):
        weights = weight_bytes(folder, values, on_gpu=device != CPU)
        size[device] = size.get(device, 0.0) + weights * count
        size[CPU] += PROCESS_BYTES * max(1, round(count))
    return size


def copies(groups: Sequence[Mapping[str, Any]], gpus: Sequence[str]) -> Iterable[tuple[str, float]]:
    for group in groups or [{}]:
        kind, count = group.get("kind", "KIND_AUTO"), float(group.get("count", 1))
        if kind == "KIND_CPU" or not gpus:
            yield CPU, count
        elif kind == "KIND_MODEL":
            yield from ((gpu, count / len(gpus)) for gpu in gpus)
        else:
            chosen = [f"cuda:{number}" for number in group.get("gpus", ())] or gpus
            yield from ((gpu, count) for gpu in chosen)


def weight_bytes(
    folder: Path,
    values: Mapping[str, Any],
    *,
    on_gpu: bool = False,
) -> int:
    """Bytes of the weights in memory; 0 where that is not known: the files are not there yet and
    in no models.lock, or the weights are quantized as they are loaded.
    """
    if file := values.get("file"):  # of a step on a backend of Triton's own
        return max((path.stat().st_size for path in folder.glob(f"[1-9]*/{file}")), default=0)
    if values.get("quantization") or values.get("role") in WITHOUT_WEIGHTS:
        return 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        files = _files(folder, values)
        names = {_SINGLE_FILE}
        if (files / _INDEX).is_file():
            names = set(read_json(files / _INDEX)["weight_map"].values())
        size = sum((files / name).stat().st_size for name in names)
        return int(size * _growth(files, values["dtype"]))
    sizes: dict[str, int] = {
        path: file["size"] for path, file in (values.get("locked_files") or {}).items()
    }
    if values["local"]:
        path = _files(folder, values)
        found = [path] if path.is_file() else filter(Path.is_file, path.glob("*"))
        sizes = {path.name: path.stat().st_size for path in found}
    with contextlib.suppress(NotServableError):
        if gguf_file := values.get("gguf_file"):
            return sizes.get(gguf_file, 0) * _GGUF_GROWTH[on_gpu]
        chosen = choose_model_files(sizes, bool(values.get("allow_pickle")))
        return sum(sizes[name] for name in chosen if name.endswith(_ENDINGS))
    return 0


def _files(folder: Path, values: Mapping[str, Any]) -> Path:
    if values["local"]:
        return Path(folder, values["model"]).resolve()
    cache = folder.parent / values["public_name"] / WEIGHTS_FOLDER
    return cached_snapshot(cache, values["model"], values["revision"])


def _growth(files: Path, dtype: str) -> float:
    config = read_json(files / "config.json")
    stored = config.get("dtype", config.get("torch_dtype"))
    if dtype not in _ITEM_BYTES or stored not in _ITEM_BYTES or "quantization_config" in config:
        return 1.0
    return _ITEM_BYTES[dtype] / _ITEM_BYTES[stored]
