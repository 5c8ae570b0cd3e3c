"""What it costs to start work on the device: kernels in a graph and one by one, a step of a model
that launches each of its own, attention of a new shape, a copy and a wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from hf_runtime.errors import reason
from torch.nn.attention import SDPBackend, sdpa_kernel

from perf.gpu.results import Context
from perf.gpu.sections.ceilings import seconds, wait
from perf.gpu.sections.shapes import random_model

_KERNELS, _LAYERS, _SHAPES = 1000, 32, 12
_BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@torch.inference_mode()
def measure(context: Context) -> None:
    """A row each."""
    device = torch.device(context.device)
    for name, us in launches(device).items():
        context.emit("launches", {"of": name, "us": us})
    layers = 2 if context.is_fake else _LAYERS
    model = random_model("llama", num_hidden_layers=layers).to(device, torch.bfloat16)
    for tokens in (1, 64):
        ids = torch.ones(1, tokens, dtype=torch.int64, device=device)
        host_s = _host_s(lambda ids=ids: model(input_ids=ids, use_cache=False), device)  # type: ignore[misc]
        row: dict[str, Any] = {"layers": layers, "tokens": tokens, "host_ms": host_s * 1e3}
        context.emit("a forward without a graph, a narrow Llama", row)
    for name, backend in _BACKENDS.items():
        try:
            new_s, known_s = attention_s(backend, device)
        except RuntimeError as error:
            context.emit("attention", {"backend": name, "why": reason(error, 120)})
            continue
        row = {"backend": name, "new_shape_ms": new_s * 1e3, "known_shape_ms": known_s * 1e3}
        context.emit("attention", row)


def launches(device: torch.device) -> dict[str, float]:
    """Microseconds of one small kernel, of one copy, of one wait."""
    tensor, host = torch.zeros(1024, device=device), torch.zeros(1024)

    def many() -> None:
        for _ in range(_KERNELS):
            tensor.add_(1)

    found = {"a kernel, its launch": _host_s(many, device) / _KERNELS}
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        found["a kernel of a graph"] = seconds(graph.replay, device, 10, 1.0) / _KERNELS
        host = host.pin_memory()
    found["a copy to the device and a wait"] = seconds(
        lambda: tensor.copy_(host, non_blocking=True), device, 100, 1.0
    )
    found["a number read"] = seconds(lambda: tensor[0].item(), device, 100, 1.0)
    return {name: one * 1e6 for name, one in found.items()}


def attention_s(backend: SDPBackend, device: torch.device) -> tuple[float, float]:
    """Seconds of a call of a shape that was never seen, and of the same again. Raises RuntimeError
    where the backend does not compute it.
    """
    new: list[float] = []
    known: list[float] = []
    for at in range(_SHAPES):
        shape = (1, 4, 100 + 7 * at, 64)
        query = torch.randn(shape, device=device, dtype=torch.bfloat16)
        for taken in (new, known):
            with sdpa_kernel(backend):
                taken.append(_timed(lambda query=query: _attend(query), device))  # type: ignore[misc]
    return median(new[1:]), median(known[1:])


def _attend(query: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, query, query, is_causal=True)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    wait(device)
    begun_s = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - begun_s


def _host_s(run: Callable[[], object], device: torch.device) -> float:
    """Seconds until the host has launched all, which the device may not have done by then."""
    taken = []
    for _ in range(5):
        wait(device)
        begun_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun_s)
    return median(taken[2:])
