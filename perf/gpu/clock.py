"""Times on a device that works behind the program's back, and what of its memory is free."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

import torch
from hf_runtime.device import free_bytes

GIB = 2**30


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
