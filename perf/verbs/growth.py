"""``hf-triton perf growth``: how time and memory grow with loads, prompts and models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from perf.verbs.arguments import whole

HELP = "how time and memory grow with requests, clients, prompts and models"
DESCRIPTION = """\
Doubles one size at a time, measures what each point takes, fits how fast that grows, and marks what
grows worse than linearly. Servers of its own, on free ports of this machine; no download.

  models-in-yaml  1 to 1,000 models in models.yaml: every verb's time and memory   15 minutes
  requests        64 to 1,024 requests of one run, 8 clients                       10 minutes
  clients         1 to 256 clients                                                 10 minutes
  prompts         16 to 2,048 tokens                                               5 minutes
  models          1 to 32 models of plain Python in one server                     5 minutes
  torch-models    1 to 32 generated models in one server; 0.5 GiB each             15 minutes

Each point is kept as soon as it is measured: Ctrl-C loses nothing, and the same command goes on.
"""
EPILOG = """\
examples:
  hf-triton perf growth --quick                         # a few points of every axis
  hf-triton perf growth --axes models-in-yaml,clients   # -> perf-results/growth/growth.html, .md
  hf-triton perf growth --axes clients --points clients=1,2,4 --repeats 5

Temporary files lie where TMPDIR says: 1,000 models in the YAML are 1 GB of small files; generate
and prune take as long as that disk does.
exit codes: 0 all measured, 1 a point could not be, 2 usage, 130 stopped
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to measure, and where results go."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--axes", metavar="A,A,...", help="only these (default: all)")
    add("--quick", action="store_true", help="few and small points, once each")
    add(
        "--points",
        action="append",
        default=[],
        metavar="AXIS=N,N,...",
        help="points of an axis instead of its own; may be given for several axes",
    )
    add(
        "--repeats",
        type=whole(1, 100),
        metavar="N",
        help="how often each point is measured (default: 3, of torch-models 1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of models and loads (default: 0)")
    add(
        "--output",
        type=Path,
        default=Path("perf-results/growth"),
        metavar="FOLDER",
        help="where results go, and whose missing points are measured (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Measures and reports; the exit code. Raises GeneratorError."""
    from perf.growth.axes.named import chosen_axes, given_points
    from perf.growth.command import Asked
    from perf.growth.command import run as measure

    axes = chosen_axes(args.axes)
    points = given_points(args.points, axes)
    return measure(
        Asked(axes, points, args.quick, args.repeats, args.seed, args.output, sys.argv[1:])
    )
