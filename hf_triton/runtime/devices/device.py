"""Chooses an instance's device, its dtype and its number of threads on a CPU, and measures free
memory. The rules for KIND_* are Triton's (instance groups); ``device_map`` is accelerate's.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceLostError, LoadError, reason
from .cpu_quota import num_cores

if TYPE_CHECKING:
    import torch

# psutil reports the machine's memory, not the container's limit.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
_CGROUP_STAT = Path("/sys/fs/cgroup/memory.stat")
# Of /proc/cpuinfo: AVX-512-BF16, AMX, ARM's.
_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_NO_PRODUCTS = "this processor has no instructions to multiply bfloat16"
_NO_FLOAT16 = "CPUs are slow in float16"
_GIB = 2**30


@dataclass(frozen=True)
class Placement:
    """``device`` is where inputs go; ``device_map`` is passed to ``from_pretrained``."""

    device: str
    device_map: str | dict[str, str]


def placement(kind: str, device_id: str, device_map: str | None) -> Placement:
    """Turns Triton's instance kind (``CPU``, ``GPU``, ``MODEL``) and the YAML's ``device_map`` into
    a placement.

    Raises:
        LoadError: a GPU is asked for and torch sees none, or not that one.
    """
    import torch

    if kind.endswith("CPU"):
        return Placement("cpu", {"": "cpu"})
    num_gpus = torch.cuda.device_count()
    if kind.endswith("MODEL"):
        on_gpus = Placement("cuda:0", device_map or "auto")
        return on_gpus if num_gpus else Placement("cpu", {"": "cpu"})
    index = int(device_id)
    if index >= num_gpus:
        raise LoadError(_no_such_gpu(index, num_gpus))
    device = f"cuda:{index}"
    return Placement(device, device_map or {"": device})


def _no_such_gpu(index: int, num_gpus: int) -> str:
    import torch

    if num_gpus:
        present = "GPU 0" if num_gpus == 1 else f"{num_gpus} GPUs, 0 to {num_gpus - 1}"
        return (
            f"instance_group: got GPU {index}, but torch sees {present}: name those in gpus, or "
            "give the server more (CUDA_VISIBLE_DEVICES, the container's --gpus)"
        )
    return (
        f"instance_group: got GPU {index}, but torch {torch.__version__} sees none: install a "
        "CUDA build of torch, or use kind: KIND_CPU"
    )


def devices_of(model: torch.nn.Module) -> list[torch.device]:
    """The devices of a model's weights; several if ``device_map`` has spread its layers."""
    return sorted({weight.device for weight in model.parameters()}, key=str)


def cpu_threads(model_config: Mapping[str, Any]) -> int:
    """The most threads to compute with: the process's cores divided by the model's instances, or
    OMP_NUM_THREADS for each instance where that is set.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return min(int(asked), num_cores())
    return max(1, num_cores() // num_instances(model_config))


def num_instances(model_config: Mapping[str, Any]) -> int:
    """The number of instances of a model that Triton runs."""
    groups = model_config.get("instance_group") or []
    return sum(int(group.get("count", 1)) for group in groups) or 1


def multiplies_bfloat16() -> bool:
    """Whether the processor has bfloat16 products and oneDNN may use them. Without them such
    products take several times as long as float32's.
    """
    import torch

    words: set[str] = set()
    with suppress(OSError):
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    is_allowed = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return bool(words & _FLAGS) and bool(is_allowed)


def fastest_dtype(saved: torch.dtype, num_bytes: int) -> tuple[torch.dtype, str]:
    """The dtype for weights saved in ``saved`` that take ``num_bytes``, and the reason for the log;
    an empty text where there is no choice.
    """
    import torch

    if saved == torch.float16:
        return torch.float32, _NO_FLOAT16
    if saved != torch.bfloat16 or multiplies_bfloat16():
        return saved, ""
    wide_bytes, free = 2 * num_bytes, free_cpu_bytes()
    if wide_bytes > free:
        gib = f"{wide_bytes / _GIB:.1f} GiB while it loads, {free / _GIB:.1f} are free"
        return saved, f"float32 would be faster, but takes {gib}"
    return torch.float32, _NO_PRODUCTS


def slowness(dtype: torch.dtype) -> str:
    """Why products in ``dtype`` take several times as long as in float32; an empty text where they
    don't.
    """
    import torch

    if dtype == torch.float16:
        return _NO_FLOAT16
    return _NO_PRODUCTS if dtype == torch.bfloat16 and not multiplies_bfloat16() else ""


def choose_attention_kernels(device: str) -> None:
    """Turns cuDNN's attention off on a GPU, for the whole process. torch prefers it on Hopper and
    data-centre Blackwell, but it plans anew for every shape it meets, in tens of milliseconds; a
    server's batches are of ever new shapes. Flash attention then takes its calls.
    """
    import torch

    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a CPU tensor to the device without waiting for the copy."""
    if device.type != "cuda" or not tensor.numel():
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def check_device_works(device: torch.device) -> None:
    """Asks a device to compute something trivial: after an illegal address or a failed assertion
    a GPU answers everything with the same error, until its process ends.

    Raises:
        DeviceLostError: it can't.
    """
    import torch

    try:
        (torch.ones(1, device=device) + 1).item()
    except torch.OutOfMemoryError:
        return  # tensors that other code still holds are freed later
    except Exception as error:
        raise DeviceLostError(
            f"{device} computes nothing any more: {type(error).__name__}: {reason(error, 120)}"
        ) from error


def check_devices_work(model: torch.nn.Module) -> None:
    for device in devices_of(model):
        check_device_works(device)


def free_bytes(device: torch.device) -> int:
    """Free memory in bytes: the GPU's own count, or ``free_cpu_bytes``."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_cpu_bytes()


def free_cpu_bytes() -> int:
    """Free bytes of the machine, within the container's limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        limit, used = _CGROUP_LIMIT.read_text().strip(), _CGROUP_USED.read_text().strip()
    except OSError:
        return available
    if limit == "max":
        return available
    return min(available, max(0, int(limit) - int(used) + _reclaimable_bytes()))


def total_bytes(device: torch.device) -> int:
    import torch

    return int(torch.cuda.mem_get_info(device)[1])


def release_freed_memory() -> None:
    """Returns freed memory, which Python and glibc keep, to the system."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _reclaimable_bytes() -> int:
    """Page cache that the container counts as used but the kernel can reclaim, such as read
    weights.
    """
    try:
        lines = _CGROUP_STAT.read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split() for line in lines)
    return int(fields.get("inactive_file", 0))
