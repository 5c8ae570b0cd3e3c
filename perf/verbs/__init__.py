"""``hf-triton perf``: each sub-verb is a module with HELP, DESCRIPTION, ``add_arguments`` and
``run``; what it needs is imported when it runs. Those of ``perf.lab`` are in a checkout alone.
"""

from __future__ import annotations

import argparse
import importlib
import signal
from importlib.util import find_spec

from generator.errors import PerfError, UsageError
from hf_triton.cli.main import instead_of
from hf_triton.tritonserver.system_calls import signals_as_interrupts
from hf_triton.version import pip_install

VERBS = {name: f"perf.verbs.{name}" for name in ("sweep", "tune", "compare")}
_GONE = ["report", "roofline"]  # gone.yaml says what to use instead
if find_spec("perf.lab"):
    VERBS["baselines"] = "perf.lab.verbs.baselines"
else:
    _GONE += ["baselines", "gpu"]
# Modules that come with another extra than hf-triton[perf].
_EXTRAS = dict.fromkeys(("torch", "transformers", "tokenizers", "numpy", "pytriton"), "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="perf_verb", required=True, metavar="VERB")
    for name, path in VERBS.items():
        module = importlib.import_module(path)
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=raw
        )
        module.add_arguments(verb)
    others = [verbs.add_parser(name, prefix_chars="\0", add_help=False) for name in _GONE]
    if "gpu" not in _GONE:
        about = "on a GPU: check the results and time them"
        others.append(verbs.add_parser("gpu", help=about, prefix_chars="\0", add_help=False))
    for other in others:  # takes all arguments
        other.add_argument("rest", nargs="*")


def run(args: argparse.Namespace) -> int:
    """Raises UsageError for a verb that is gone, PerfError where a package is not installed."""
    if args.perf_verb in _GONE:
        instead = instead_of(f"perf {args.perf_verb}")
        raise UsageError(f"hf-triton perf {args.perf_verb} is gone: {instead}")
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
