"""Compares the engines of one served model: the process behind ``hf-triton optimize``.

``python -m hf_triton.encoder.optimize FOLDER ...`` with the folder of a generated model. Tables go
to stdout, progress to stderr. Ends in 0; in 1 where the model can't be loaded, or the engine that
models.yaml names is refused; in 3 for a bug; in 130 where interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import platform
import runpy
import sys
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime.devices import device
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.served_model import ServedModel, read_served_model

from ..loading import load_setup
from ..runners.runner import RunnerSetup
from .comparison import ENGINES, candidates, timings
from .report import Report, to_json, to_text

_LENGTHS = (16, 128)


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    logging.getLogger("hf_triton").setLevel(logging.INFO)
    logging.basicConfig(format="hf-triton: %(message)s", level=logging.WARNING)
    try:
        return compare(args)
    except LoadError as error:
        _say(f"{args.folder.name}: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except Exception:  # any other exception is a bug of ours
        traceback.print_exc()
        _say("this is a bug in hf-triton; please report it")
        return 3


def compare(args: argparse.Namespace) -> int:
    """Makes the engines, times them, and prints the result; returns the exit code. Raises
    LoadError.
    """
    served = read_served_model(args.folder, args.version)
    options_class, task_class = served_classes(args.folder, args.version)
    options = served.read_options(options_class)
    placement = device.placement(_kind(args.kind), "0", served.device_map)
    torch.set_num_threads(device.cpu_threads({"instance_group": [{"count": args.instances}]}))
    setup, _ = load_setup(served, options, task_class, placement)
    lengths = _fitting(args.lengths, setup.max_length)
    int8 = "-int8" if options.quantization == "int8" else ""
    report = Report(_about(served, setup, args.command), f"{options.engine}{int8}")
    try:
        _say(f"{served.public_name}: making ready {', '.join(args.engines)}")
        for one in candidates(setup, served, options, args.engines, args.tolerance, lengths):
            report.candidates.append(one)
            how = f"refused: {one.refusal}" if one.refusal else f"ready: {one.description}"
            _say(f"{one.name} {how}")
        _time(report, setup, lengths, args)
    except KeyboardInterrupt:
        _say("interrupted: what is done is told")
    sys.stdout.write(to_text(report))
    sys.stdout.flush()
    _write(args.json or served.cache_dir / "optimize.json", to_json(report))
    if not report.complete:
        return 130
    return 1 if report.named_is_refused else 0


def _time(
    report: Report, setup: RunnerSetup, lengths: Sequence[int], args: argparse.Namespace
) -> None:
    runners = {one.name: one.runner for one in report.candidates if one.runner is not None}
    shapes = [(length, size) for length in lengths for size in args.batch_sizes]
    # What imports left is collected now: Python drops a Ctrl-C that meets a destructor, and a
    # collection during a round would count as its engine's.
    gc.collect()
    for number, shape in enumerate(shapes):
        _say(f"timing {shape[0]} tokens, batch size {shape[1]} ({number + 1} of {len(shapes)})")
        report.timings += timings(setup, runners, shape, args.seconds)
    report.complete = True


def served_classes(folder: Path, version: str) -> tuple[type[Any], type[Any]]:
    """The options and the task of a generated model, as named in its model.py. That file imports
    Triton's module, which is replaced by an empty one here.
    """
    sys.modules.setdefault(
        "triton_python_backend_utils", types.ModuleType("triton_python_backend_utils")
    )
    model = runpy.run_path(str(folder / version / "model.py"))["TritonPythonModel"]
    found: tuple[type[Any], type[Any]] = model().parts()
    return found


def _fitting(asked: Sequence[int] | None, max_length: int) -> list[int]:
    """The lengths to test. Raises LoadError for one beyond the model's limit."""
    if asked is None:
        return [length for length in _LENGTHS if length <= max_length] or [max_length]
    too_long = [length for length in asked if length > max_length]
    if too_long:
        raise LoadError(
            f"--lengths: got {too_long[0]}, this model takes at most {max_length} tokens"
        )
    return list(asked)


def _kind(kind: str) -> str:
    """Triton's choice for KIND_AUTO: a GPU where there is one."""
    if kind != "KIND_AUTO":
        return kind
    return "KIND_GPU" if torch.cuda.is_available() else "KIND_CPU"


def _about(served: ServedModel, setup: RunnerSetup, command: str) -> dict[str, object]:
    """Describes the model and the machine for a report."""
    is_on_gpu = setup.device.type == "cuda"
    return {
        "command": command,
        "model": served.public_name,
        "source": served.source,
        "task": served.task,
        "dtype": str(setup.model.dtype).removeprefix("torch."),
        "device": str(setup.device),
        "hardware": {
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "cores": os.cpu_count() or 0,
            "threads": torch.get_num_threads(),
            **({"gpu": torch.cuda.get_device_name(setup.device)} if is_on_gpu else {}),
        },
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    from importlib import metadata

    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu"):
        for distribution in metadata.distributions(name=name):
            found[name] = distribution.version
    return found


def _write(path: Path, text: str) -> None:
    """Writes the report to ``path`` atomically. Raises LoadError."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise LoadError(f"{path}: can't be written: {error.strerror}") from error
    _say(f"written to {path}")


def _say(text: str) -> None:
    sys.stderr.write(f"hf-triton: {text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("hf_triton.encoder.optimize", allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default="1", help="the version folder in it")
    parser.add_argument("--kind", default="KIND_AUTO")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--engines", type=json.loads, default=list(ENGINES))
    parser.add_argument("--lengths", type=json.loads)
    parser.add_argument("--batch-sizes", type=json.loads, default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--tolerance", type=float)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--command", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
