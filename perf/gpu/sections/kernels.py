"""Where a decode step's time goes: the kernels it launches, by kind."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import torch
from text_generation.engine.scheduler import Step
from text_generation.in_flight.warm_up import dummy_sequence
from text_generation.sequence.sampling_params import SamplingParams

from perf.gpu.results import Row
from perf.gpu.sections.ceilings import wait

_STEPS = 5
KINDS = (
    ("attention", r"fmha|flash|attention|sdpa|cudnn"),  # cutlass has some of these too
    ("matrix products", r"gemm|gemv|cutlass|nvjet|splitk|cublas|matmul|aten::(add)?mm|linear"),
    ("reductions", r"reduce|softmax|argmax|mean|norm"),
    ("indexing", r"index|gather|scatter"),
    ("copies", r"memcpy|memset|copy|catarray|aten::cat"),
    ("elementwise", r"elementwise|vectorized|aten::(mul|add|silu|neg|pow|rsqrt)"),
)


def kind_of(kernel: str) -> str:
    """What a kernel is for: the first kind that fits its name."""
    name = kernel.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def kernels_of(
    runner: Any, sequences: int, num_computed_tokens: int, device: torch.device
) -> Iterator[Row]:
    """Per kind: how many kernels a step launches and how long they take; then the step as a whole,
    from launch to logits.
    """
    step = _step(sequences, num_computed_tokens)
    runner.forward(step)
    wait(device)
    begun_s = time.perf_counter()
    for _ in range(_STEPS):
        runner.forward(step)
        wait(device)
    step_ms = (time.perf_counter() - begun_s) / _STEPS * 1e3
    found = _profiled(runner, step, device)
    for kind, (count, ms) in sorted(found.items(), key=lambda item: -item[1][1]):
        yield {"kind": kind, "kernels": count, "ms": ms, "step_share": ms / step_ms}
    busy_ms = sum(ms for _, ms in found.values())
    launched = sum(count for count, _ in found.values())
    yield {"kind": "all", "kernels": launched, "ms": busy_ms, "step_share": busy_ms / step_ms}
    yield {"kind": "the step's wall time", "kernels": None, "ms": step_ms, "step_share": 1.0}


def _step(sequences: int, num_computed_tokens: int) -> Step:
    """One token for each of so many sequences, which stand at the same position."""
    params = SamplingParams(max_tokens=8)
    decodes = []
    for slot in range(sequences):
        sequence = dummy_sequence([2] * num_computed_tokens, params)
        sequence.token_ids.append(3)
        sequence.slot, sequence.num_computed_tokens = slot, num_computed_tokens + 1
        decodes.append(sequence)
    return Step(decodes)


def _profiled(runner: Any, step: Step, device: torch.device) -> dict[str, tuple[int, float]]:
    """By kind: launches a step, and milliseconds of the device a step."""
    on_gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        for _ in range(_STEPS):
            runner.forward(step)
        wait(device)
    found: dict[str, tuple[int, float]] = {}
    for event in profile.key_averages():
        taken_us = _device_us(event) if on_gpu else event.self_cpu_time_total
        if taken_us <= 0:
            continue
        kind = kind_of(event.key)
        count, ms = found.get(kind, (0, 0.0))
        found[kind] = (count + round(event.count / _STEPS), ms + taken_us / _STEPS / 1e3)
    return found


def _device_us(event: Any) -> float:
    """Called self_cuda_time_total before torch 2.4."""
    former = getattr(event, "self_cuda_time_total", 0.0)
    return float(getattr(event, "self_device_time_total", former))
