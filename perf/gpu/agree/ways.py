"""Every way in which the in-flight engine can compute one Llama, against the CPU's tokens: what
computes attention and layers, graphs or none, a step ahead or not, preemption.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from hf_triton.runtime.errors import reason
from perf.gpu.agree.compared import TOLERANCE, load, references, run_case
from perf.gpu.models import random_model
from perf.gpu.told import Told

Way = tuple[str, Callable[[], AbstractContextManager[None]], dict[str, Any]]
"""Its name, what holds while the engine is made, and the engine's options."""

# Pages for one sequence of the longest, and none to spare.
_FEW_PAGES = {"max_model_len": 176, "kv_cache_gib": 12.5 * 16 * 2048 / 2**30}
_OURS, _PLAIN = "our kernel", "torch's operators"
_SHORT = (0, 3)  # prompts, where a kernel is interpreted


class _AbsentError(Exception):
    """What is to compute attention can't be had here."""


def measure(told: Told, wanted: re.Pattern[str]) -> None:
    """A row for each; FlashAttention computes no float32, and OpenAI Triton's interpreter, which
    stands for our kernels on a CPU, has no products of bfloat16.
    """
    device, model = told.device, random_model("llama")
    for dtype in (torch.float32, torch.bfloat16):
        rounded = copy.deepcopy(model).to(dtype)
        expected = references(copy.deepcopy(rounded).float(), load())
        ways = [*(_settings(device) if dtype == torch.float32 else ()), *_attention(device, dtype)]
        for name, way, options in ways:
            called = f"{name}, {str(dtype).removeprefix('torch.')}"
            is_interpreted = told.is_cpu and _OURS in name
            if (is_interpreted and dtype != torch.float32) or not wanted.search(called):
                continue
            with told.case(called, _runner_of(name)) as row:
                try:
                    with way():
                        pairs = list(zip(load(), expected, strict=True))
                        pairs = [pairs[at] for at in _SHORT] if is_interpreted else pairs
                        asked, tokens = zip(*pairs, strict=True)
                        here = copy.deepcopy(rounded).to(device)
                        run_case(row, here, device, asked, tokens, TOLERANCE[dtype], **options)
                except _AbsentError as error:
                    row["agrees"], row["why"] = None, str(error)


def _runner_of(way: str) -> str:
    """What is to run it on a GPU."""
    if way == "slots":
        return "packed"
    has_graphs = way != "without graphs" and _PLAIN not in way
    return ("paged" if way.startswith("paged") else "fused") + ", CUDA graphs" * has_graphs


def _settings(device: torch.device) -> Iterator[Way]:
    yield "as it sets itself up", nullcontext, {}
    yield "slots", nullcontext, {"paged": False}
    yield "each step read before the next", nullcontext, {"runs_ahead": False}
    yield "few pages: preempted", nullcontext, _FEW_PAGES
    if device.type == "cuda":
        yield "without graphs", _without_graphs, {}


def _attention(device: torch.device, dtype: torch.dtype) -> Iterator[Way]:
    """Our layers and transformers' with each backend that computes attention over pages."""
    from hf_triton.text_generation.gpu.backends import backends
    from hf_triton.text_generation.paged.plain_attention import plain_attention

    for name, attention in backends(device):
        if name == _OURS or dtype != torch.float32:
            yield f"fused, {name}", partial(_attending_by, attention), {}
            yield f"paged, {name}", partial(_attending_by, attention, is_fused=False), {}
    yield f"paged, {_PLAIN}", partial(_attending_by, lambda: plain_attention), {}


@contextmanager
def _attending_by(attention: Callable[[], Any], *, is_fused: bool = True) -> Iterator[None]:
    """Raises _AbsentError."""
    from hf_triton.runtime.fused.parts import UnsupportedLayersError
    from hf_triton.text_generation.gpu.runner import GpuFusedRunner
    from hf_triton.text_generation.in_flight import runner_selection

    try:
        attend = attention()
    except Exception as error:
        # Not installed, or not for this card: whatever a package says.
        raise _AbsentError(f"{type(error).__name__}: {reason(error, 120)}") from error

    def refuse(*_: Any) -> Any:
        raise UnsupportedLayersError("not asked for")

    with ExitStack() as stack:
        stack.enter_context(patch.object(runner_selection, "select_attention", lambda *_: attend))
        if not is_fused:
            stack.enter_context(patch.object(GpuFusedRunner, "__init__", refuse))
        yield


@contextmanager
def _without_graphs() -> Iterator[None]:
    from hf_triton.text_generation.in_flight import engine

    with patch.object(engine, "with_cuda_graphs", lambda runner, *_: runner):
        yield
