"""Compares the engines of one served model: the process behind ``hf-triton optimize``.

``python -m hf_triton.encoder.optimize FOLDER JSON`` with the folder of a generated model and the
fields that hf_triton/cli/verbs/optimize.py sends. Tables go to stdout, progress to stderr. Ends in
0; in 1 where the model can't be loaded, or the engine that models.yaml names is refused; in 3 for a
bug; in 130 where interrupted.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import platform
import sys
import traceback
import types
from importlib import metadata
from itertools import product
from pathlib import Path

import torch

from hf_triton.runtime import log
from hf_triton.runtime.devices import device
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.served_model import ServedModel, read_served_model

from ..encoder_loading import EncoderFiles
from ..runners.encoder_runner import RunnerSetup
from ..task import task_of
from .comparison import Report, candidates, timings, to_json, to_text

_LENGTHS = (16, 128)


def main(folder: Path, asked: types.SimpleNamespace) -> int:
    logging.getLogger("hf_triton").setLevel(logging.INFO)
    logging.basicConfig(format="hf-triton: %(message)s", level=logging.WARNING)
    try:
        return compare(folder, asked)
    except LoadError as error:
        log.info(f"{folder.name}: {error}")
        return 1
    except KeyboardInterrupt:
        log.info("interrupted")
        return 130
    except Exception:  # any other exception is a bug of ours
        traceback.print_exc()
        log.info("this is a bug in hf-triton; please report it")
        return 3


def compare(folder: Path, asked: types.SimpleNamespace) -> int:
    """Returns the exit code. Raises LoadError."""
    served = read_served_model(folder, asked.version)
    options, task_class = task_of(served)
    kind = asked.kind
    if kind == "KIND_AUTO":  # as Triton chooses
        kind = "KIND_GPU" if torch.cuda.is_available() else "KIND_CPU"
    placement = device.placement(kind, "0", served.device_map)
    torch.set_num_threads(device.cpu_threads({"instance_group": [{"count": asked.instances}]}))
    setup, _ = EncoderFiles(served, options, task_class).setup(placement)
    usual = [length for length in _LENGTHS if length <= setup.max_length] or [setup.max_length]
    lengths = asked.lengths or usual
    if max(lengths) > setup.max_length:
        most = f"this model takes at most {setup.max_length} tokens"
        raise LoadError(f"--lengths: got {max(lengths)}, {most}")
    int8 = "-int8" if options.quantization == "int8" else ""
    report = Report(_about(served, setup, asked.command), f"{options.engine}{int8}")
    try:
        log.info(f"{served.public_name}: preparing {', '.join(asked.engines)}")
        for one in candidates(setup, served, options, asked.engines, asked.tolerance, lengths):
            report.candidates.append(one)
            how = f"ready: {one.runner.name}" if one.runner else f"refused: {one.refusal}"
            log.info(f"{one.name} {how}")
        runners = {one.name: one.runner for one in report.candidates if one.runner is not None}
        # Imports' garbage is collected now: Python drops a Ctrl-C that meets a destructor, and a
        # collection during a round would count as its engine's.
        gc.collect()
        shapes = list(product(lengths, asked.batch_sizes))
        for number, (length, size) in enumerate(shapes, 1):
            log.info(f"timing {length} tokens, batch size {size} ({number} of {len(shapes)})")
            report.timings += timings(setup, runners, (length, size), asked.seconds)
        report.complete = True
    except KeyboardInterrupt:
        log.info("interrupted: reporting what is done")
    sys.stdout.write(to_text(report))
    sys.stdout.flush()
    path = Path(asked.json or served.cache_dir / "optimize.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(report), encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{path}: can't be written: {error.strerror}") from error
    log.info(f"written to {path}")
    if not report.complete:
        return 130
    return 1 if report.named_is_refused else 0


def _about(served: ServedModel, setup: RunnerSetup, command: str) -> dict[str, object]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("transformers", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu"):
        for distribution in metadata.distributions(name=name):
            versions[name] = distribution.version
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
        "versions": versions,
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), types.SimpleNamespace(**json.loads(sys.argv[2]))))
