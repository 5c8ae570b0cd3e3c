"""``hf-triton perf``: how fast it is, what to choose, and how far that is from the limit.

Each sub-verb is a module here with HELP, DESCRIPTION, ``add_arguments`` and ``run``: thin, for the
work is in the rooms beside this one, which are imported when a sub-verb runs.
"""

from __future__ import annotations

import argparse
import importlib

from generator.errors import PerfError
from perf.verbs.stopping import stopping_as_interrupts

VERBS = ("sweep", "baselines", "tune", "report", "compare", "roofline", "gpu")
# Modules that come with another extra than hf-triton[perf].
_EXTRAS = dict.fromkeys(("torch", "transformers", "tokenizers", "numpy", "pytriton"), "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs, each with arguments of its own."""
    raw = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="perf_verb", required=True, metavar="VERB")
    for name in VERBS:
        module = importlib.import_module(f"perf.verbs.{name}")
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=raw
        )
        module.add_arguments(verb)


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb. Raises PerfError where a package that it needs is not installed."""
    module = importlib.import_module(f"perf.verbs.{args.perf_verb}")
    try:
        with stopping_as_interrupts():
            code: int = module.run(args)
    except ModuleNotFoundError as error:
        raise PerfError(_missing(f"hf-triton perf {args.perf_verb}", error)) from error
    return code


def _missing(command: str, error: ModuleNotFoundError) -> str:
    """What to install. Raises ``error`` again where a module of ours is missing from ours."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "perf", "generator"):
        raise error
    extra = _EXTRAS.get(name, "perf")
    return f"{command} needs the Python package {name}: pip install 'hf-triton[{extra}]'"
