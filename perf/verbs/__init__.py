"""``hf-triton perf``: how fast it is, what to choose, and how far that is from the limit.

Each sub-verb is a module here with HELP, DESCRIPTION, ``add_arguments`` and ``run``: thin, for the
work is in the rooms beside this one, which are imported when a sub-verb runs. Those of ``perf.lab``
are there in a checkout alone.
"""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec

from generator.errors import PerfError, UsageError
from hf_triton.version import pip_install
from perf.verbs.stopping import stopping_as_interrupts

VERBS = {name: f"perf.verbs.{name}" for name in ("sweep", "tune", "report", "compare")}
if find_spec("perf.lab"):
    VERBS |= {name: f"perf.lab.verbs.{name}" for name in ("baselines", "gpu")}
# Of earlier releases; what to use instead.
_GONE = {
    "roofline": "`perf sweep` and `perf tune` show the share of what this machine allows in their "
    "reports; other figures come from perf_analyzer, AIPerf or GuideLLM"
}
# Modules that come with another extra than hf-triton[perf].
_EXTRAS = dict.fromkeys(("torch", "transformers", "tokenizers", "numpy", "pytriton"), "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs, each with arguments of its own."""
    raw = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="perf_verb", required=True, metavar="VERB")
    for name, path in VERBS.items():
        module = importlib.import_module(path)
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=raw
        )
        module.add_arguments(verb)
    for name in _GONE:  # accepts and ignores all arguments
        gone = verbs.add_parser(name, prefix_chars="\0", add_help=False)
        gone.add_argument("rest", nargs="*")


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb. Raises UsageError for one that is gone, PerfError where a package that it
    needs is not installed.
    """
    if args.perf_verb in _GONE:
        raise UsageError(f"hf-triton perf {args.perf_verb} is gone: {_GONE[args.perf_verb]}")
    module = importlib.import_module(VERBS[args.perf_verb])
    try:
        with stopping_as_interrupts():
            code: int = module.run(args)
    except ModuleNotFoundError as error:
        raise PerfError(_missing(f"hf-triton perf {args.perf_verb}", error)) from error
    return code


def _missing(command: str, error: ModuleNotFoundError) -> str:
    """An error that says what to install. Raises ``error`` again where the missing module is our
    own.
    """
    name = (error.name or "").partition(".")[0]
    if name in ("", "perf", "generator", "hf_triton"):
        raise error
    extra = _EXTRAS.get(name, "perf")
    return f"{command} needs the Python package {name}: {pip_install(extra)}"
