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
from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.text_generation.engines.in_flight import engine, runner_selection
from hf_triton.text_generation.forward.gpu.backends import backends
from hf_triton.text_generation.forward.gpu.runner import GpuFusedRunner
from hf_triton.text_generation.forward.paged.plain_attention import plain_attention
from perf.lab.gpu.agree.compared import load, references, run_case
from perf.lab.gpu.engines import Asked
from perf.lab.gpu.models import random_model
from perf.lab.gpu.told import AbsentError, Told, short

Way = tuple[str, str, Callable[[], AbstractContextManager[object]], dict[str, Any]]
"""Its name, what is to run it on a GPU, what holds while the engine is made, its options."""

# Pages for one sequence of the longest, and none to spare.
_FEW_PAGES = {"max_model_len": 176, "kv_cache_gib": 12.5 * 16 * 2048 / 2**30}
_OURS, _GRAPHS = "our kernel", ", CUDA graphs"
# Where a kernel is interpreted.
_SHORT = [Asked([7, 8, 9], 2), Asked([*range(5, 25)], 2)]
_SHORT_ROOM = {"max_num_seqs": 2, "max_num_batched_tokens": 16}


def measure(told: Told, pattern: str) -> None:
    """A row for each; FlashAttention computes no float32, and OpenAI Triton's interpreter, which
    stands for our kernels on a CPU, has no products of bfloat16.
    """
    for dtype in (torch.float32, torch.bfloat16):
        whole, expected = random_model("llama").to(dtype), None
        for what, runner, way, options in _ways(told, dtype):
            name, is_interpreted = f"{what}, {short(dtype)}", told.is_cpu and _OURS in what
            if (is_interpreted and dtype != torch.float32) or not re.search(pattern, name):
                continue
            with told.case(name, runner) as row:
                model, asked = whole, load()
                if is_interpreted:
                    model, asked = random_model("llama", num_hidden_layers=1), _SHORT
                    tokens, options = references(model, asked), _SHORT_ROOM
                else:
                    expected = expected or references(copy.deepcopy(model).float(), asked)
                    tokens = expected
                with way():
                    here = copy.deepcopy(model).to(told.device)
                    run_case(row, told, here, asked, tokens, **options)


def _ways(told: Told, dtype: torch.dtype) -> Iterator[Way]:
    """Settings, then our layers and transformers' with each backend of attention over pages."""
    if dtype == torch.float32:
        yield "as it sets itself up", f"fused{_GRAPHS}", nullcontext, {}
        yield "slots", "packed", nullcontext, {"paged": False}
        yield (
            "each step read before the next",
            f"fused{_GRAPHS}",
            nullcontext,
            {"async_scheduling": False},
        )
        yield "few pages: preempted", f"fused{_GRAPHS}", nullcontext, _FEW_PAGES
        if not told.is_cpu:
            yield "without graphs", "fused", _without_graphs, {}
    for name, attention in backends(told.device):
        if name == _OURS or dtype != torch.float32:
            yield f"fused, {name}", f"fused{_GRAPHS}", partial(_attending_by, attention), {}
            plain = partial(_attending_by, attention, is_fused=False)
            yield f"paged, {name}", f"paged{_GRAPHS}", plain, {}
    operators = partial(_attending_by, lambda: plain_attention)
    yield "paged, torch's operators", "paged", operators, {}


@contextmanager
def _attending_by(attention: Callable[[], Any], *, is_fused: bool = True) -> Iterator[None]:
    """Raises AbsentError."""
    try:
        attend = attention()
    except Exception as error:
        # Not installed, or not for this card: whatever a package says.
        raise AbsentError(f"{type(error).__name__}: {reason(error, 120)}") from error
    refusal = UnsupportedLayersError("not asked for")
    with ExitStack() as stack:
        stack.enter_context(patch.object(runner_selection, "select_attention", lambda *_: attend))
        if not is_fused:
            stack.enter_context(patch.object(GpuFusedRunner, "__init__", side_effect=refusal))
        yield


def _without_graphs() -> AbstractContextManager[object]:
    return patch.object(engine, "with_cuda_graphs", lambda runner, *_: runner)
