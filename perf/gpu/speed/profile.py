"""Where a decode step's time goes: the kernels it launches, by kind, and the host's functions."""

from __future__ import annotations

import cProfile
import io
import pstats
import re
import time
from collections.abc import Iterator
from typing import Any

import torch

from hf_triton.text_generation.in_flight.engine import InFlightEngine
from perf.gpu.device import wait
from perf.gpu.engines import Asked, answers

_PROMPT, _STEPS = 8, 64  # tokens; the step that reads the prompts is among them
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
    engine: InFlightEngine, sequences: int, device: torch.device
) -> Iterator[dict[str, Any]]:
    """Per kind: how many kernels a decode step launches and how long they take, of so many
    sequences with short prompts; then the step as a whole.
    """
    asked = _asked(sequences)
    answers(engine, asked)
    begun_s = time.perf_counter()
    answers(engine, asked)
    step_ms = (time.perf_counter() - begun_s) / _STEPS * 1e3
    found = _profiled(engine, asked, device)
    found["all"] = (sum(n for n, _ in found.values()), sum(ms for _, ms in found.values()))
    for kind, (number, ms) in sorted(found.items(), key=lambda item: -item[1][1]):
        yield {"kind": kind, "kernels": number / _STEPS, "ms": ms, "step_share": ms / step_ms}
    yield {"kind": "the step's wall time", "kernels": None, "ms": step_ms, "step_share": 1.0}


def _asked(sequences: int) -> list[Asked]:
    return [Asked([2 + at] * _PROMPT, _STEPS + 1) for at in range(sequences)]


def _profiled(
    engine: InFlightEngine, asked: list[Asked], device: torch.device
) -> dict[str, tuple[int, float]]:
    """By kind: launches, and milliseconds of the device a step."""
    on_gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if on_gpu else activity.CPU]) as profile:
        answers(engine, asked)
        wait(device)
    found: dict[str, tuple[int, float]] = {}
    for event in profile.key_averages():
        taken_us = _device_us(event) if on_gpu else event.self_cpu_time_total
        if taken_us > 0:
            count, ms = found.get(kind := kind_of(event.key), (0, 0.0))
            found[kind] = (count + event.count, ms + taken_us / _STEPS / 1e3)
    return found


def _device_us(event: Any) -> float:
    """Called self_cuda_time_total before torch 2.4."""
    former = getattr(event, "self_cuda_time_total", 0.0)
    return float(getattr(event, "self_device_time_total", former))


def told_host(engine: InFlightEngine, sequences: int) -> None:
    """Prints what the engine's thread does in Python, slower for being watched; waiting for the
    device is ``synchronize``.
    """
    own, recorded = engine._step, cProfile.Profile()  # noqa: SLF001

    def step() -> None:
        recorded.enable()
        try:
            own()
        finally:
            recorded.disable()

    engine._step = step  # type: ignore[method-assign]  # noqa: SLF001
    try:
        answers(engine, _asked(sequences))
    finally:
        del engine._step  # noqa: SLF001
    out = io.StringIO()
    pstats.Stats(recorded, stream=out).sort_stats("tottime").print_stats(14)
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    print(f"    host, {sequences} sequences, {_STEPS + 1} steps:")
    print("\n".join(f"      {line[:150]}" for line in lines[2:20]), flush=True)
