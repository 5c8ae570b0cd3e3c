"""What the device can do at best: its memory's bandwidth and its matrix products, in bfloat16; and
how times and free memory are read on it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import torch
from hf_runtime.devices.device import free_bytes

from perf.gpu.results import Context

GIB = 2**30
_COPY_BYTES, _TINY_COPY_BYTES = 2 * 2**30, 2**22
_SIDE, _TINY_SIDE = 8192, 256
_TIMES, _FOR_S, _TOGETHER = 10, 2.0, 10


def measure(context: Context) -> None:
    """One row each."""
    device = torch.device(context.device)
    for name, bytes_per_s in bandwidths(device, tiny=context.is_fake).items():
        context.emit("memory", {"measured": name, "gb_per_s": bytes_per_s / 1e9})
    for dtype in (torch.bfloat16, torch.float16):
        rate = matmul_rate(device, dtype, tiny=context.is_fake)
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


@torch.inference_mode()
def matmul_rate(device: torch.device, dtype: torch.dtype, *, tiny: bool) -> float:
    """FLOP/s of a square product of random numbers: zeros draw less power and run faster."""
    side = _TINY_SIDE if tiny else _SIDE
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / seconds(lambda: left @ right, device, _TIMES, _FOR_S, _TOGETHER)


def wait(device: torch.device) -> None:
    """Returns when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(
    run: Callable[[], object], device: torch.device, times: int, for_s: float, together: int = 1
) -> float:
    """The median time of one run, of ``times`` or as many as fit ``for_s``; ``together`` of them
    are waited for at once, where waiting would show.
    """
    for _ in range(3):
        run()
    wait(device)
    taken: list[float] = []
    while len(taken) < times and (len(taken) < 3 or sum(taken) * together < for_s):
        begun_s = time.perf_counter()
        for _ in range(together):
            run()
        wait(device)
        taken.append((time.perf_counter() - begun_s) / together)
    return median(taken)


def free_gib(device: torch.device) -> float:
    """Free memory of the device, in GiB, with what torch keeps but does not use given back."""
    gc.collect()  # an engine and its threads refer to each other
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    return free_bytes(device) / GIB
