"""``hf-triton perf tune MODEL``: finds settings for a goal, and puts them into models.yaml."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from generator.errors import UsageError
from generator.flag_values import positive, whole
from perf.verbs.arguments import add_places

HELP = "find a model's settings for a goal, by trying them"
DESCRIPTION = """\
Find the settings of a model for a goal: highest throughput or lowest latency, within bounds.

Each trial serves the model with other settings on a private server and measures it; your
repository and your running server are left alone. The first trial is what models.yaml says now.
The best is measured again in turns with that, to tell it from noise.

  hf-triton perf tune demo --max-p99-ms 500
  hf-triton perf tune demo --goal latency --concurrency 4 --search max_num_seqs=1:16 --write
"""
_MOST = 10_000
_AS_GIVEN = (  # arguments that a Request has by the same names
    *("model", "concurrency", "repeats", "seed", "search", "fix"),
    *("load", "endpoint", "output", "write"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the goal, its bounds, what is tried, for how long, and what becomes of the winner."""
    add_places(parser)
    parser.add_argument("model", metavar="MODEL", help="its name in models.yaml")
    _add_goal(parser)
    _add_load(parser)
    _add_search(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where results go (default: perf-results/tune-MODEL-..., the same for the same "
        "search, which then goes on)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the winner into models.yaml, where it is better beyond noise",
    )
    parser.add_argument("--model-analyzer", help=argparse.SUPPRESS)


def _add_goal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--goal",
        choices=("throughput", "latency"),
        default="throughput",
        help="highest output tokens/s (or requests/s), or lowest p99 latency (default: throughput)",
    )
    for flag, what in (
        ("--max-p99-ms", "p99 latency of whole answers is at most this"),
        ("--max-ttft-ms", "p99 time to the first token of a stream is at most this"),
        ("--min-throughput", "with --goal latency: at least so many a second"),
    ):
        parser.add_argument(flag, type=positive, metavar="N", help=what)


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--concurrency", type=whole(1, _MOST), default=16, metavar="N", help="callers (default: 16)"
    )
    parser.add_argument(
        "--load",
        metavar="LENGTHS",
        help="prompt=64,output=128, or ranges as prompt=16-256,output=8-64, in tokens",
    )
    parser.add_argument(
        "--endpoint",
        choices=("infer", "generate-stream"),
        help="default: generate-stream where the model streams",
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="values to try: max_num_seqs=8,16,32 or 8:64 (doubling) or 8:64:8 (steps); may be "
        "repeated; only these keys are searched then (default: what suits the task)",
    )
    parser.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set in every trial but the first",
    )
    parser.add_argument("--trials", type=whole(1, _MOST), default=20, help="at most (default: 20)")
    parser.add_argument("--minutes", type=positive, help="begin no trial after so many")
    parser.add_argument(
        "--patience",
        type=whole(1, _MOST),
        default=8,
        metavar="TRIALS",
        help="stop after so many without a better one (default: 8)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=15.0,
        help="each trial is measured; a third of that, where it is clearly worse (default: 15)",
    )
    parser.add_argument(
        "--repeats",
        type=whole(0, _MOST),
        default=3,
        metavar="N",
        help="turns in which the winner and the current settings are measured again (default: 3)",
    )
    parser.add_argument("--seed", type=whole(0, _MOST), default=0, help="default: 0")


def run(args: argparse.Namespace) -> int:
    """Returns 1 where nothing meets the bounds. Raises GeneratorError."""
    if args.min_throughput is not None and args.goal == "throughput":
        raise UsageError("--min-throughput is for --goal latency; --goal throughput looks for it")
    if args.model_analyzer is not None:
        instead = "leave it out to search here; AIPerf, GuideLLM and perf_analyzer measure a server"
        raise UsageError(f"--model-analyzer is gone: {instead}")
    from perf.tune.goal import Goal
    from perf.tune.question import Request
    from perf.tune.search import Effort
    from perf.tune.tuning import tune

    request = Request(
        config=Path(args.config),
        repository=Path(args.repository),
        goal=Goal(args.goal, args.max_p99_ms, args.max_ttft_ms, args.min_throughput),
        effort=Effort(args.trials, args.seconds, args.minutes, args.patience),
        command=shlex.join(["hf-triton", *sys.argv[1:]]),
        **{name: getattr(args, name) for name in _AS_GIVEN},
    )
    return tune(request)
