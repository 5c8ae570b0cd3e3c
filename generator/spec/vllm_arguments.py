"""Converts ``options:`` to vLLM's arguments, as
https://docs.vllm.ai/en/stable/configuration/engine_args.html names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_GIB = 2**30
_SAME_NAME = ("max_model_len", "max_num_seqs")


def arguments(options: Mapping[str, object]) -> dict[str, Any]:
    found = {name: options[name] for name in _SAME_NAME if options.get(name) is not None}
    kv_cache_gib = options.get("kv_cache_gib")
    if isinstance(kv_cache_gib, int | float):
        found["kv_cache_memory_bytes"] = int(kv_cache_gib * _GIB)
    return {**found, **own_arguments(options)}


def num_gpus(options: Mapping[str, object]) -> int:
    own = own_arguments(options)
    sizes = (own.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    tensor, pipeline = (size if type(size) is int and size > 0 else 1 for size in sizes)
    return tensor * pipeline


def own_arguments(options: Mapping[str, object]) -> Mapping[str, Any]:
    own = options.get("vllm")
    return own if isinstance(own, Mapping) else {}
