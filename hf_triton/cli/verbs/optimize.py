"""``hf-triton optimize MODEL``: finds the fastest engine for a model on this machine, and checks
its results. Generates the model, then starts the comparison in the model's Python: this module
imports no torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from generator.errors import ModelError
from generator.flag_values import counts, names, positive
from generator.models_yaml.reading import load, named
from generator.python_modules import ROOT_FOLDER, run_module
from generator.repository.compare import folder_version
from generator.repository.native_model import place_models
from generator.spec.model_spec import ModelSpec
from generator.spec.task_folders import find_tasks
from generator.spec.triton_models import triton_models
from hf_triton.cli.verbs.generate import generate, refuse_conflicts
from hf_triton.python_env.find_environment import LIBRARY_PATH
from hf_triton.serving.python_env import ensure_environments, folder_of
from hf_triton.tritonserver.system_calls import signal_name, signals_as_interrupts
from hf_triton.version import pip_install

ENGINES = ("torch", "onnxruntime", "onnxruntime-int8")
_PACKAGE = "encoder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the model's name in models.yaml")
    parser.add_argument(
        "--engines",
        type=names(ENGINES),
        default=list(ENGINES),
        metavar="NAMES",
        help=f"engines to compare with plain PyTorch (default: {','.join(ENGINES)})",
    )
    parser.add_argument(
        "--lengths",
        type=counts,
        metavar="TOKENS",
        help="lengths of the texts (default: 16,128, as far as the model takes them)",
    )
    parser.add_argument(
        "--batch-sizes", type=counts, metavar="TEXTS", help="texts in a batch (default: 1,8,32)"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=10.0,
        help="how long each length and batch size is timed, with all engines in turns; each engine "
        "runs at least 5 times (default: 10)",
    )
    parser.add_argument(
        "--tolerance",
        type=positive,
        metavar="SHARE",
        help="largest difference from plain PyTorch, as a share of the largest value where that is "
        "above 1 (default: 1e-4 in float32, 0.03 in float16, 0.08 in bfloat16, 0.1 for int8); the "
        "server keeps to the default",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="file for the result (default: <repository>/MODEL/hf_cache/optimize.json)",
    )


def run(args: argparse.Namespace) -> int:
    config, repository = Path(args.config), Path(args.repository)
    tasks = find_tasks()
    spec = named(load(config), args.model, config)
    if _PACKAGE not in tasks[spec.task].packages:
        others = ", ".join(tag for tag, task in tasks.items() if _PACKAGE in task.packages)
        raise ModelError(
            f"model '{spec.name}' is of the task {spec.task}, which has no engines to compare; "
            f"these have: {others or 'none'}"
        )
    python = _python_of(spec)
    refuse_conflicts(generate(config, repository).conflicts)
    # With every layout the last folder runs Python and knows the task.
    code = _compare(repository / triton_models(spec)[-1].name, python, spec, args)
    for note in place_models([spec], repository):
        print(f"hf-triton: {note}", file=sys.stderr)
    return code


def _python_of(spec: ModelSpec) -> str:
    """Builds the model's own environment if it is missing. Raises ModelError."""
    if spec.python_env is None:
        missing = [name for name in ("torch", "transformers") if not find_spec(name)]
        if missing:
            raise ModelError(
                f"{' and '.join(missing)} not installed in {sys.executable}: "
                f"{pip_install('serve,onnx')}"
            )
        return sys.executable
    for name, reason in ensure_environments([spec]).items():
        raise ModelError(f"{name}: {reason}")
    return str(folder_of(spec.python_env) / "bin" / "python3")


def _compare(folder: Path, python: str, spec: ModelSpec, args: argparse.Namespace) -> int:
    """Runs the comparison; passes an interrupt on, so that it prints partial results."""
    paths = filter(None, (str(LIBRARY_PATH), os.environ.get("PYTHONPATH")))
    own = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    with (
        signals_as_interrupts(signal.SIGTERM),
        subprocess.Popen(
            _command(folder.resolve(), python, spec, args),
            env={**os.environ, **own},
            cwd=ROOT_FOLDER,  # child processes of libraries import from there
            start_new_session=True,  # we pass the terminal's Ctrl-C on, once
        ) as process,
    ):
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            try:
                code = process.wait()
            except BaseException:  # a second interrupt
                process.kill()
                raise
    if code < 0:
        raise ModelError(f"the comparison was ended by {signal_name(-code)} (out of memory?)")
    return code


def _command(folder: Path, python: str, spec: ModelSpec, args: argparse.Namespace) -> list[str]:
    groups = spec.instance_groups
    asked = {
        "version": str(folder_version(folder)),
        "kind": groups[0].kind if groups else "KIND_AUTO",
        "instances": sum(group.count for group in groups) or 1,
        "engines": args.engines,
        "lengths": args.lengths,
        "batch_sizes": args.batch_sizes or [1, 8, 32],
        "seconds": args.seconds,
        "tolerance": args.tolerance,
        "json": args.json and str(args.json.resolve()),
        "command": shlex.join(["hf-triton", *sys.argv[1:]]),
    }
    return run_module("hf_triton.encoder.optimize", str(folder), json.dumps(asked), python=python)
