"""Whether this interpreter can measure, and what device it has: the first thing a run asks."""

from __future__ import annotations

import importlib
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from perf.gpu.plan import FAKE
from perf.gpu.results import Context, SkippedError

ENGINES = ("text_generation.loading", "hf_encoder.runners.graph_runner")
FOR_SERVING = (
    *("tqdm", "yaml", "jinja2", "psutil", "accelerate", "tritonclient.grpc", "generator.cli"),
)
"""What the server sections import beyond that: the generator's and the tutorial model's needs."""
MORE = ("triton", "kernels", "torchao", "bitsandbytes", "vllm")
"""What some of the sections use where it is installed: other versions give other figures."""


def measure(context: Context) -> None:
    """Emits the device as a figure's row. Raises ``SkippedError`` where nothing can be measured."""
    packages = {name: _imported(name) for name in ("torch", "transformers", "numpy")}
    for name in ENGINES:
        _imported(name, "the engines")
    row = device_row(packages["torch"], context.device)
    versions = {name: str(package.__version__) for name, package in packages.items()}
    versions |= {name: found for name in MORE if (found := _version(name))}
    missing = ", ".join(name for name in FOR_SERVING if not _is_there(name))
    context.emit("device", {**row, **versions, "missing_for_serving": missing})


def device_row(torch: Any, device: str) -> dict[str, Any]:
    """Name, memory and driver of ``device``, of ``any`` the first GPU's or the fake one's. Raises
    ``SkippedError`` where there is no such device.
    """
    is_there = device != FAKE and torch.cuda.is_available()
    if device == FAKE or (device == "any" and not is_there):
        why = "asked for" if device == FAKE else why_no_gpu(torch)
        return {"device_name": FAKE, "device": FAKE, "why": why}
    if not is_there:
        raise SkippedError(
            f"no GPU to measure on: {why_no_gpu(torch)}; it needs an NVIDIA GPU, a driver as new "
            "as torch's CUDA, and a CUDA build of torch"
        )
    device = "cuda:0" if device == "any" else device
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        raise SkippedError(f"--device: got {device}, torch sees {torch.cuda.device_count()} GPUs")
    properties = torch.cuda.get_device_properties(index)
    return {
        "device_name": device,
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(index),
        "cuda": torch.version.cuda,
    }


def why_no_gpu(torch: Any) -> str:
    """What is lacking, in words."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001
        # A driver that is missing or too old says so here, in sentences.
        return ". ".join(str(error).strip().splitlines()[0].split(". ")[:2])
    return "torch sees no GPU"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _driver(index: int) -> str:
    query = ["nvidia-smi", f"--id={index}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _imported(name: str, called: str = "") -> Any:
    """The module. Raises ``SkippedError``, which calls it ``called``."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SkippedError(
            f"{called or name} can't be imported: {error}; a missing package can come as a wheel: "
            "--wheels DIR"
        ) from error


def _is_there(name: str) -> bool:
    try:
        return bool(_imported(name))
    except SkippedError:
        return False
