"""Whether this interpreter can measure, and what device it has: the first thing a run asks."""

from __future__ import annotations

import importlib
import subprocess
from typing import Any

from perf.gpu.results import Context, SkippedError

ENGINES = ("text_generation.loading", "hf_encoder.runners.graph_runner")
FOR_SERVING = (
    *("tqdm", "yaml", "jinja2", "psutil", "accelerate", "tritonclient.grpc", "generator.cli"),
)
"""What the server sections import beyond that: the generator's and the tutorial model's needs."""


def measure(context: Context) -> None:
    """Emits the device as a figure's row. Raises ``SkippedError`` where nothing can be measured."""
    packages = {name: _imported(name) for name in ("torch", "transformers", "numpy")}
    for name in ENGINES:
        _imported(name, "the engines")
    row = device_row(packages["torch"], context.device)
    versions = {name: str(package.__version__) for name, package in packages.items()}
    missing = ", ".join(name for name in FOR_SERVING if not _is_there(name))
    context.emit("device", {**row, **versions, "missing_for_serving": missing})


def device_row(torch: Any, device: str) -> dict[str, Any]:
    """Name, memory and driver. Raises ``SkippedError`` where there is no such device."""
    if device == "cpu":
        return {"device": "cpu"}
    if not torch.cuda.is_available():
        raise SkippedError(why_no_gpu(torch))
    index = torch.device(device).index or 0
    if index >= torch.cuda.device_count():
        raise SkippedError(f"--device: got {device}, torch sees {torch.cuda.device_count()} GPUs")
    properties = torch.cuda.get_device_properties(index)
    return {
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(index),
        "cuda": torch.version.cuda,
    }


def why_no_gpu(torch: Any) -> str:
    """One line: what is lacking, and what this needs."""
    if torch.version.cuda is None:
        why = f"torch {torch.__version__} is built without CUDA"
    else:
        try:
            torch.cuda.init()
            why = "torch sees no GPU"
        except Exception as error:  # noqa: BLE001
            # A driver that is missing or too old says so here, in sentences.
            why = ". ".join(str(error).strip().splitlines()[0].split(". ")[:2])
    return (
        f"no GPU to measure on: {why}; it needs an NVIDIA GPU, a driver as new as torch's CUDA, "
        "and a CUDA build of torch (--device cpu --tiny only tries the script)"
    )


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
