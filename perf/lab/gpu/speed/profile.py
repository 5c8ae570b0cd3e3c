"""Where a decode step's time goes: the kernels it launches, by kind, and the host's functions."""

from __future__ import annotations

import cProfile
import io
import pstats
import re
import time
from collections.abc import Iterable
from unittest.mock import patch

import torch

from hf_triton.text_generation.engines.in_flight.engine import InFlightEngine
from perf.lab.gpu.engines import Asked, answers
from perf.lab.gpu.told import Told

_PROMPT, _STEPS = 8, 64  # tokens; the step that reads the prompts is among them
KINDS = (
    ("attention", r"fmha|flash|attention|sdpa|cudnn"),  # cutlass has some of these too
    ("matrix products", r"gemm|gemv|cutlass|nvjet|splitk|cublas|matmul|aten::(add)?mm|linear"),
    ("reductions", r"reduce|softmax|argmax|mean|norm"),
    ("indexing", r"index|gather|scatter"),
    ("copies", r"memcpy|memset|copy|catarray|aten::cat"),
    ("elementwise", r"elementwise|vectorized|aten::(mul|add|silu|neg|pow|rsqrt)"),
)


def wait(device: torch.device) -> None:
    """Returns when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def kind_of(kernel: str) -> str:
    """What a kernel is for: the first kind that fits its name."""
    name = kernel.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def told_steps(told: Told, engine: InFlightEngine, numbers: Iterable[int]) -> None:
    """Of decode steps of so many sequences with short prompts, by kind of kernel: how many there
    are and how long they take; then the step as a whole and the host's functions.
    """
    for number in numbers:
        asked = [Asked([2 + at] * _PROMPT, _STEPS + 1) for at in range(number)]
        answers(engine, asked)
        begun_s = time.perf_counter()
        answers(engine, asked)
        step_ms = (time.perf_counter() - begun_s) / _STEPS * 1e3
        found = _profiled(engine, asked, told.device)
        found["all"] = (sum(n for n, _ in found.values()), sum(ms for _, ms in found.values()))
        for kind, (count, ms) in sorted(found.items(), key=lambda item: -item[1][1]):
            row = {"kind": kind, "kernels": count / _STEPS, "ms": ms, "step_share": ms / step_ms}
            told.row(f"kernels of a step of {number}", row)
        told.row(f"a step of {number}", {"ms": step_ms})
        print(f"    host, {number} sequences, {_STEPS + 1} steps:\n{_host(engine, asked)}")


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
        taken_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if taken_us > 0:
            count, ms = found.get(kind := kind_of(event.key), (0, 0.0))
            found[kind] = (count + event.count, ms + taken_us / _STEPS / 1e3)
    return found


def _host(engine: InFlightEngine, asked: list[Asked]) -> str:
    """What the engine's thread does in Python, slower for being watched; waiting for the device is
    ``synchronize``.
    """
    own, recorded = engine._step, cProfile.Profile()  # noqa: SLF001
    with patch.object(engine, "_step", lambda: recorded.runcall(own)):
        answers(engine, asked)
    out = io.StringIO()
    pstats.Stats(recorded, stream=out).sort_stats("tottime").print_stats(14)
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    return "\n".join(f"      {line[:150]}" for line in lines[2:20])
