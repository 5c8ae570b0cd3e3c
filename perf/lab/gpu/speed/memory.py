"""What of the device's memory the engine takes, beside the budget that was stated for it."""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from perf.lab.gpu.engines import Asked, answers, engine_on
from perf.lab.gpu.models import GIB, free_gib
from perf.lab.gpu.told import Told

_STATED_GIB, _TINY_STATED_GIB = 8.0, 0.01
_FREE_SHARE = 0.9  # of what is free, on a GPU: text_generation/kv/kv_cache.py
_LEAST_LEFT_GIB = 0.25  # a driver, a neighbour, a larger batch of another dtype


def told_memory(told: Told, model: Any) -> None:
    """A stated budget, then the share of free memory that is taken where none is stated."""
    stated = _TINY_STATED_GIB if told.is_cpu else _STATED_GIB
    length, sequences = (64, 4) if told.is_cpu else (2048, 64)
    options: dict[str, Any] = {"max_model_len": length, "max_num_seqs": sequences}
    with told.case("kv_cache_gib is stated") as row:
        _measure(row, told, model, stated, {**options, "kv_cache_gib": stated})
    free = free_gib(told.device)
    per_token = sum(shape.bytes_per_token for shape in layer_shapes(model, told.device))
    most = int(free * _FREE_SHARE * GIB) // (sequences * per_token) - 1
    longest = 128 if told.is_cpu else min(most, model.config.max_position_embeddings)
    with told.case("90 % of what is free") as row:
        _measure(row, told, model, free * _FREE_SHARE, {**options, "max_model_len": longest})


def _measure(
    row: dict[str, Any], told: Told, model: Any, budget_gib: float, options: dict[str, Any]
) -> None:
    """The engine started, its graphs captured; behind it all sequences at once, sampled from a flat
    distribution: the largest buffers a step has.
    """
    before = free_gib(told.device)
    with engine_on(model, told.device, **options) as engine:
        started, room = free_gib(told.device), engine.max_model_len
        sampling = {"temperature": 5.0, "top_p": 0.99, "seed": 0}
        for number, length in ((engine.max_num_seqs, 512), (1, 4096)):
            prompt = [2] * min(room // 2, length)
            answers(engine, [Asked(prompt, min(24, room // 4), sampling=sampling)] * number)
        # With what torch keeps for later still taken, as others see it.
        left = started if told.is_cpu else torch.cuda.mem_get_info(told.device)[0] / GIB
        size = engine.size
    kept = size.num_bytes / GIB
    row |= {"sequences": size.max_num_seqs, "max_model_len": size.max_model_len}
    row |= {"kv_cache_gib": kept, "budget_gib": budget_gib, "engine_gib": before - started}
    row |= {"left_gib": left, "least_gib": _LEAST_LEFT_GIB}
    row["agrees"] = kept <= budget_gib and left >= _LEAST_LEFT_GIB
