"""What the device can do at best: its memory's bandwidth and its matrix products, in bfloat16."""

from __future__ import annotations

import torch

from perf.gpu.clock import seconds
from perf.gpu.context import Context

_COPY_BYTES, _TINY_COPY_BYTES = 2 * 2**30, 2**22
_SIDE, _TINY_SIDE = 8192, 256
_TIMES, _FOR_S, _TOGETHER = 10, 2.0, 10


def measure(context: Context) -> None:
    """One row each."""
    device = torch.device(context.device)
    for name, bytes_per_s in bandwidths(device, tiny=context.tiny).items():
        context.emit("memory", {"measured": name, "gb_per_s": bytes_per_s / 1e9})
    for dtype in (torch.bfloat16, torch.float16):
        rate = matmul_rate(device, dtype, tiny=context.tiny)
        name = str(dtype).removeprefix("torch.")
        context.emit("matrix product", {"dtype": name, "tflop_per_s": rate / 1e12})


@torch.inference_mode()
def bandwidths(device: torch.device, *, tiny: bool) -> dict[str, float]:
    """Bytes/s of a copy (read and written) and of reading alone, of buffers far beyond caches."""
    size = _TINY_COPY_BYTES if tiny else _COPY_BYTES
    source = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    copied_s = seconds(lambda: target.copy_(source), device, _TIMES, _FOR_S, _TOGETHER)
    read_s = seconds(source.sum, device, _TIMES, _FOR_S, _TOGETHER)
    return {"copy": 2 * size / copied_s, "read": size / read_s}


def memory_bytes_per_s(device: torch.device, *, tiny: bool) -> float:
    """The best of the two: what decoding is held to."""
    return max(bandwidths(device, tiny=tiny).values())


@torch.inference_mode()
def matmul_rate(device: torch.device, dtype: torch.dtype, *, tiny: bool) -> float:
    """FLOP/s of a square product of random numbers: zeros draw less power and run faster."""
    side = _TINY_SIDE if tiny else _SIDE
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / seconds(lambda: left @ right, device, _TIMES, _FOR_S, _TOGETHER)
