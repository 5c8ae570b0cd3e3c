"""What settings need of memory, as far as a model's files tell before it is loaded.

An estimate from below: what it refuses can't work; what it lets pass may still fail to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.spec.model_spec import ModelSpec
from generator.yaml_file.regular_file import read_json
from perf.sweep.server.machine_use import nvidia_smi
from perf.tune.settings.keys import INSTANCES, OPTIONS
from perf.tune.settings.space import Settings
from perf.usage import available_gib

_GIB = 2**30
_PROCESS_GIB = 0.3  # of a stub with torch and transformers in it
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_LONGEST_BY_ITSELF = 4096  # the engine takes no more where it would not fit


@dataclass(frozen=True)
class Room:
    """``weights_gib`` of one instance, ``cache_bytes`` of a token in it (0: not known)."""

    free_gib: float
    weights_gib: float
    cache_bytes: int
    longest: int  # tokens of a sequence

    @classmethod
    def of(cls, spec: ModelSpec, files: Path | None) -> Room:
        """``files`` has the model's config.json and its weights, where they are here."""
        config = _config(files)
        weights = sum(path.stat().st_size for path in files.glob("*.safetensors")) if files else 0
        longest = next((config[key] for key in _LENGTHS if isinstance(config.get(key), int)), 0)
        limit = spec.options.get("max_model_len") or min(longest, _LONGEST_BY_ITSELF)
        size = _BYTES.get(spec.dtype) or _BYTES.get(str(config.get("dtype")), 2)
        free = _free_gib(spec)
        return cls(free, weights / _GIB, _cache_bytes(config, size), int(str(limit or 0)))

    def refusal(self, settings: Settings) -> str | None:
        """Why these settings can't be held, with the numbers."""
        cache = settings.get(f"{OPTIONS}kv_cache_gib")
        if cache is None:
            sequences = float(settings.get(f"{OPTIONS}max_num_seqs") or 0)
            cache = sequences * self.longest * self.cache_bytes / _GIB
        instances = float(settings.get(INSTANCES) or 1)
        need = instances * (self.weights_gib + _PROCESS_GIB + float(cache))
        if need <= self.free_gib:
            return None
        return f"needs at least {need:.1f} GiB, and {self.free_gib:.1f} GiB are free"


def _config(files: Path | None) -> dict[str, Any]:
    try:
        read = read_json(files / "config.json") if files else {}
    except (OSError, ValueError):
        return {}
    return read.get("text_config", read) if isinstance(read, dict) else {}


def _cache_bytes(config: dict[str, Any], size: int) -> int:
    """The bytes of one token: a key and a value for each layer and key head."""
    try:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return int(2 * config["num_hidden_layers"] * heads * width * size)
    except (KeyError, TypeError, ZeroDivisionError):
        return 0


def _free_gib(spec: ModelSpec) -> float:
    """What is free on the GPUs that the model may use, where there are any, else in the machine."""
    if all(group.kind != "KIND_CPU" for group in spec.instance_groups):
        rows = nvidia_smi("gpu=memory.free")
        if rows:
            return sum(mib for (mib,) in rows) / 1024
    return available_gib()
