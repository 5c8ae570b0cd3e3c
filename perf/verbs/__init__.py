"""``hf-triton perf``: how fast it is, what to choose, and how far that is from the limit.

Each sub-verb is a module here with HELP, DESCRIPTION, ``add_arguments`` and ``run``: thin, for the
work is in the rooms beside this one, which are imported when a sub-verb runs. Those of ``perf.lab``
are there in a checkout alone.
"""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec
from typing import Any

from generator.errors import PerfError
from perf.verbs.stopping import stopping_as_interrupts

VERBS = ("sweep", "tune", "report", "compare", "roofline")
LAB_VERBS = ("baselines", "gpu") if find_spec("perf.lab") else ()
# Modules that come with another extra than hf-triton[perf].
_EXTRAS = dict.fromkeys(("torch", "transformers", "tokenizers", "numpy", "pytriton"), "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-verbs, each with arguments of its own."""
    raw = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(dest="perf_verb", required=True, metavar="VERB")
    for name in (*VERBS, *LAB_VERBS):
        module = _module(name)
        verb = verbs.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=raw
        )
        module.add_arguments(verb)


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb. Raises PerfError where a package that it needs is not installed."""
    module = _module(args.perf_verb)
    try:
        with stopping_as_interrupts():
            code: int = module.run(args)
    except ModuleNotFoundError as error:
        raise PerfError(_missing(f"hf-triton perf {args.perf_verb}", error)) from error
    return code


def _module(name: str) -> Any:
    """With HELP, DESCRIPTION, ``add_arguments`` and ``run``."""
    return importlib.import_module(f"perf.{'lab.' * (name in LAB_VERBS)}verbs.{name}")


def _missing(command: str, error: ModuleNotFoundError) -> str:
    """What to install. Raises ``error`` again where a module of ours is missing from ours."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "perf", "generator", "hf_triton"):
        raise error
    extra = _EXTRAS.get(name, "perf")
    return f"{command} needs the Python package {name}: pip install 'hf-triton[{extra}]'"
