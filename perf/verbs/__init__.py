"""``hf-triton perf``: each sub-verb is a module with HELP, DESCRIPTION, ``add_arguments`` and
``run``; what it needs is imported when it runs. Those of ``perf.lab`` are in a checkout alone.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import signal
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from generator.errors import PerfError
from hf_triton.tritonserver.system_calls import signals_as_interrupts
from hf_triton.version import pip_install

VERBS = {name: f"perf.verbs.{name}" for name in ("sweep", "tune", "compare")}
if find_spec("perf.lab"):
    VERBS["baselines"] = "perf.lab.verbs.baselines"
# Modules that come with another extra than hf-triton[perf].
_EXTRAS = dict.fromkeys(("torch", "transformers", "tokenizers", "numpy", "pytriton"), "serve")
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="perf_verb", required=True, metavar="VERB")
    for name, path in VERBS.items():
        module = importlib.import_module(path)
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=raw
        )
        module.add_arguments(verb)
    if "baselines" in VERBS:
        about = "on a GPU: check the results and time them"
        gpu = verbs.add_parser("gpu", help=about, prefix_chars="\0", add_help=False)
        gpu.add_argument("rest", nargs="*")  # takes all arguments


def options_from(kind: type[T], args: argparse.Namespace, **more: Any) -> T:
    """Makes a dataclass of the arguments of its fields' names, and the command line."""
    more["command"] = shlex.join(["hf-triton", *sys.argv[1:]])
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in more and hasattr(args, each.name):
            value = getattr(args, each.name)
            more[each.name] = Path(value) if each.name in ("config", "repository") else value
    return kind(**more)


def run(args: argparse.Namespace) -> int:
    """Raises PerfError where a package is not installed."""
    try:
        # So a measurement keeps its results and ends its child processes.
        with signals_as_interrupts(signal.SIGTERM, signal.SIGHUP):
            if args.perf_verb == "gpu":
                return int(importlib.import_module("perf.lab.gpu").main(args.rest))
            code: int = importlib.import_module(VERBS[args.perf_verb]).run(args)
    except ModuleNotFoundError as error:
        raise PerfError(_missing(f"hf-triton perf {args.perf_verb}", error)) from error
    return code


def _missing(command: str, error: ModuleNotFoundError) -> str:
    """Says what to install. Raises ``error`` again where the missing module is our own."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "perf", "generator", "hf_triton"):
        raise error
    extra = _EXTRAS.get(name, "perf")
    return f"{command} needs the Python package {name}: {pip_install(extra)}"
