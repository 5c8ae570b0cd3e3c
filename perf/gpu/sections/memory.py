"""What of the device's memory the engine takes, beside the budget that was stated for it."""

from __future__ import annotations

from typing import Any

import torch
from text_generation.in_flight.engine import InFlightEngine
from text_generation.kv.layer_shapes import layer_shapes

from perf.gpu.results import Context, Row, Target
from perf.gpu.sections.ceilings import GIB, free_gib
from perf.gpu.sections.engines import Asked, answers, engine_on
from perf.gpu.sections.shapes import llama_bytes, make_llama

STATED_GIB, TINY_STATED_GIB = 8.0, 0.01
FREE_SHARE = 0.9  # of what is free, on a GPU: text_generation/kv/kv_cache.py
_SEQUENCES = 64
_LEAST_LEFT_GIB = 0.25  # a driver, a neighbour, a larger batch of another dtype


def measure(context: Context) -> None:
    """A stated budget, then the share of free memory that is taken where none is stated."""
    device = torch.device(context.device)
    before = free_gib(device)
    model = make_llama(context.shape, device, STATED_GIB if not context.is_fake else 0.1)
    context.emit(
        "weights",
        {
            "model": context.shape,
            "weights_gib": llama_bytes(context.shape) / GIB,
            "taken_gib": before - free_gib(device),
            "free_gib": free_gib(device),
        },
    )
    stated = TINY_STATED_GIB if context.is_fake else STATED_GIB
    length, sequences = (64, 4) if context.is_fake else (2048, _SEQUENCES)
    options: dict[str, Any] = {"max_model_len": length, "max_num_seqs": sequences}
    told = {**options, "kv_cache_gib": stated}
    _measure_budget(context, model, device, "kv_cache_gib stated", stated, told)
    free = free_gib(device)
    per_token = sum(shape.bytes_per_token for shape in layer_shapes(model, device))
    most = int(free * FREE_SHARE * GIB) // (_SEQUENCES * per_token) - 1
    longest = 128 if context.is_fake else min(most, model.config.max_position_embeddings)
    options["max_model_len"] = longest
    _measure_budget(context, model, device, "90 % of what is free", free * FREE_SHARE, options)


def _measure_budget(
    context: Context,
    model: Any,
    device: torch.device,
    name: str,
    budget_gib: float,
    options: dict[str, Any],
) -> None:
    """One row: the engine started, its graphs captured, a load of sampled sequences behind it."""
    context.say(f"{name}: starting the engine")
    before = free_gib(device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    with engine_on(model, device, **options) as engine:
        started = free_gib(device)
        _load(engine)
        # With what torch keeps for later still taken, as others see it.
        left = torch.cuda.mem_get_info(device)[0] / GIB if on_gpu else free_gib(device)
        kept = engine.size.num_bytes / GIB
    row: Row = {
        "budget": name,
        "budget_gib": budget_gib,
        "sequences": engine.size.max_num_seqs,
        "max_model_len": engine.size.max_model_len,
        "kv_cache_gib": kept,
        "engine_gib": before - started,
        "free_after_load_gib": left,
        "torch_reserved_peak_gib": torch.cuda.max_memory_reserved(device) / GIB if on_gpu else None,
    }
    context.emit("budget", row, Target("KV cache within the budget", budget_gib - kept, 0.0))
    context.emit(
        "headroom",
        {"budget": name, "free_after_load_gib": left},
        Target(f"at least {_LEAST_LEFT_GIB} GiB left", left, _LEAST_LEFT_GIB),
    )


def _load(engine: InFlightEngine) -> None:
    """All sequences at once, sampled from a flat distribution: the largest buffers a step has."""
    room = engine.max_model_len
    sampling = {"temperature": 5.0, "top_p": 0.99, "seed": 0}
    for number, length in ((engine.max_num_seqs, 512), (1, 4096)):
        prompt = [2] * min(room // 2, length)
        answers(engine, [Asked(prompt, min(24, room // 4), sampling=sampling)] * number)
