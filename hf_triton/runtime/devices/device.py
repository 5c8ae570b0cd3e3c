"""Chooses an instance's device, its dtype and its number of threads on a CPU, and measures free
memory. The rules for KIND_* are Triton's (instance groups); ``device_map`` is accelerate's.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceLostError, LoadError, reason

if TYPE_CHECKING:
    import torch

# psutil reports the machine's memory, not the container's limit.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
CGROUP_STAT = Path("/sys/fs/cgroup/memory.stat")
_ROOT = Path("/sys/fs/cgroup")
_GIB = 2**30


@dataclass(frozen=True)
class Placement:
    """``device`` is where inputs go; ``device_map`` is passed to ``from_pretrained``."""

    device: str
    device_map: str | dict[str, str]


def placement(kind: str, device_id: str, device_map: str | None) -> Placement:
    """Raises LoadError where a GPU is asked for that torch does not see."""
    import torch

    if kind.endswith("CPU"):
        return Placement("cpu", {"": "cpu"})
    num_gpus = torch.cuda.device_count()
    if kind.endswith("MODEL"):
        on_gpus = Placement("cuda:0", device_map or "auto")
        return on_gpus if num_gpus else Placement("cpu", {"": "cpu"})
    device = f"cuda:{device_id}"
    if int(device_id) < num_gpus:
        return Placement(device, device_map or {"": device})
    if not num_gpus:
        raise LoadError(
            f"instance_group: got GPU {device_id}, but torch {torch.__version__} sees none: "
            "install a CUDA build of torch, or use kind: KIND_CPU"
        )
    present = "GPU 0" if num_gpus == 1 else f"{num_gpus} GPUs, 0 to {num_gpus - 1}"
    raise LoadError(
        f"instance_group: got GPU {device_id}, but torch sees {present}: name those in gpus, or "
        "give the server more (CUDA_VISIBLE_DEVICES, the container's --gpus)"
    )


def devices_of(model: torch.nn.Module) -> list[torch.device]:
    """The devices of a model's weights; several if ``device_map`` has spread its layers."""
    return sorted({weight.device for weight in model.parameters()}, key=str)


def cpu_threads(model_config: Mapping[str, Any]) -> int:
    """The cores divided by the model's instances; OMP_NUM_THREADS for each where that is set."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return min(int(asked), num_cores())
    return max(1, num_cores() // num_instances(model_config))


def num_instances(model_config: Mapping[str, Any]) -> int:
    """Of a group that names GPUs there are as many on each."""
    groups = model_config.get("instance_group") or [{}]
    return sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups)


def multiplies_bfloat16() -> bool:
    """True if the processor has bfloat16 products, and oneDNN may use them."""
    import torch

    is_allowed = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
    return has_any_flag("avx512_bf16", "amx_bf16", "bf16") and bool(is_allowed)


def has_any_flag(*names: str) -> bool:
    """True if /proc/cpuinfo has one of these instruction sets."""
    with suppress(OSError):
        return not set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split()).isdisjoint(names)
    return False


def fastest_dtype(saved: torch.dtype, num_bytes: int) -> tuple[torch.dtype, str]:
    """The dtype for such weights, and the reason for the log; empty where there is no choice."""
    import torch

    why, wide_bytes, free = slowness(saved), 2 * num_bytes, free_cpu_bytes()
    if why and saved == torch.bfloat16 and wide_bytes > free:
        gib = f"{wide_bytes / _GIB:.1f} GiB while it loads, {free / _GIB:.1f} are free"
        return saved, f"float32 would be faster, but takes {gib}"
    return torch.float32 if why else saved, why


def slowness(dtype: torch.dtype) -> str:
    """The reason that products in ``dtype`` are slower than in float32; empty if they are not."""
    import torch

    if dtype == torch.float16:
        return "CPUs are slow in float16"
    is_slow = dtype == torch.bfloat16 and not multiplies_bfloat16()
    return "this processor has no instructions to multiply bfloat16" if is_slow else ""


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
    a GPU answers everything with the same error, until its process ends: DeviceLostError.
    """
    import torch

    try:
        (torch.ones(1, device=device) + 1).item()
    except torch.OutOfMemoryError:
        return  # tensors that other code still holds are freed later
    except Exception as error:
        raise DeviceLostError(
            f"{device} can't compute any more: {type(error).__name__}: {reason(error, 120)}"
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
    """Free bytes of the machine, within the container's limit. What the container counts as used
    but the kernel can reclaim, such as the page cache of read weights, is free.
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # without a limit it is "max"
        limit, used = int(CGROUP_LIMIT.read_text()), int(CGROUP_USED.read_text())
        reclaimable = 0
        with suppress(OSError):
            fields = dict(line.split() for line in CGROUP_STAT.read_text().splitlines())
            reclaimable = int(fields.get("inactive_file", 0))
        free = min(free, max(0, limit - used + reclaimable))
    return free


def total_bytes(device: torch.device) -> int:
    import torch

    return int(torch.cuda.mem_get_info(device)[1])


def trim_heap() -> None:
    """Returns the freed memory that glibc keeps to the system; takes some milliseconds."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def num_cores() -> int:
    """The number of cores the process may compute on at once, rounded up; at least 1."""
    return max(1, math.ceil(min(cpu_quota(), len(os.sched_getaffinity(0)))))


def cpu_quota(root: Path = _ROOT, cgroups: Path = Path("/proc/self/cgroup")) -> float:
    """Seconds of processor time that the process may use in a second, by the quotas of its cgroup
    of version 2 and of those above; infinite without any. ``cgroups`` is as cgroups(7) has it.

    A container often sees its own cgroup alone, at the root, whatever its path is.
    """
    path = ""
    with suppress(OSError):
        path = "".join(re.findall(r"^0::/*(.*)$", cgroups.read_text(), re.MULTILINE)[:1])
    own = root / path
    folders = (folder for folder in (root, own, *own.parents) if folder.is_relative_to(root))
    return min(map(_quota_of, folders))


def _quota_of(folder: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    return math.inf
