"""Measures the load of a model and its devices' free memory; `hf-triton apply` reads whether a
second copy fits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..devices.device import free_bytes
from .publishing import Family, Sample, one_number

_MEMORY = "hf_triton_memory_bytes"
_MEMORY_HELP = "Memory that a model took when it was loaded, and that is free, by device"
_SECONDS_HELP = "Time that the load of a model took, the start of its process too"
# What a process takes of a GPU beside torch's tensors: the CUDA context, its kernels, cuBLAS.
_CONTEXT_BYTES = 512 * 2**20
_STEP = 64 * 2**20  # rounding of free memory, so that it does not change every second


class LoadMetrics:
    """Made when a model is loaded. ``seconds`` have passed since its process began; ``held`` are
    the bytes by device that the process has by then: on a GPU all that torch has reserved, the
    cache of keys and values too; on the CPU what it shares with no file, and nothing of such a
    cache, which is taken as it is written.
    """

    def __init__(self) -> None:
        import psutil

        self.seconds = time.time() - psutil.Process().create_time()
        self.held = held_bytes()

    def families(self) -> Iterator[Family]:
        """As Prometheus names them; may be read from any thread."""
        import torch

        samples = []
        for device, held in self.held.items():
            free = free_bytes(torch.device(device)) // _STEP * _STEP
            samples.append(Sample({"device": device, "kind": "loaded"}, float(held)))
            samples.append(Sample({"device": device, "kind": "free"}, float(free)))
        yield Family(_MEMORY, _MEMORY_HELP, False, tuple(samples))
        yield one_number("hf_triton_load_seconds", _SECONDS_HELP, self.seconds)


def held_bytes() -> dict[str, int]:
    """The bytes that this process uses on each device."""
    import psutil
    import torch

    own = psutil.Process().memory_info()
    held = {"cpu": int(own.rss - own.shared)}
    for index in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(index)
        if reserved:
            held[f"cuda:{index}"] = int(reserved) + _CONTEXT_BYTES
    return held
