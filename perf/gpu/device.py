"""How times, bandwidth and free memory are read on a device."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import torch

from hf_triton.runtime.devices.device import free_bytes

GIB = 2**30
_COPY_BYTES, _TINY_COPY_BYTES = 2 * 2**30, 2**22


def wait(device: torch.device) -> None:
    """Returns when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def copied_per_s(device: torch.device) -> float:
    """Bytes/s that a copy reads and writes, of a buffer far beyond caches."""
    size = _TINY_COPY_BYTES if device.type == "cpu" else _COPY_BYTES
    source = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device)


def _seconds(run: Callable[[], object], device: torch.device, together: int = 10) -> float:
    """The median time of one run; ``together`` of them are waited for at once."""
    taken: list[float] = []
    for _ in range(8):
        wait(device)
        begun_s = time.perf_counter()
        for _ in range(together):
            run()
        wait(device)
        taken.append((time.perf_counter() - begun_s) / together)
    return median(taken[1:])


def free_gib(device: torch.device) -> float:
    """Free memory of the device, in GiB, with what torch keeps but does not use given back."""
    gc.collect()  # an engine and its threads refer to each other
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    return free_bytes(device) / GIB
