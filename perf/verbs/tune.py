"""``hf-triton perf tune MODEL``: searches settings for a goal, and writes them to models.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.flag_values import positive, whole
from hf_triton.cli.places import add_places
from perf.verbs import options_from

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, some = parser.add_argument, whole(1, _MOST)
    add_places(parser)
    add("model", metavar="MODEL", help="the model's name in models.yaml")
    best = "highest output tokens/s (or requests/s), or lowest p99 latency (default: throughput)"
    add("--goal", choices=("throughput", "latency"), default="throughput", help=best)
    p99 = "p99 latency of whole answers is at most this"
    add("--max-p99-ms", type=positive, metavar="N", help=p99)
    first = "p99 time to the first token of a stream is at most this"
    add("--max-ttft-ms", type=positive, metavar="N", help=first)
    add("--concurrency", type=some, default=16, metavar="N", help="callers at once (default: 16)")
    texts = "lengths in tokens: prompt=64,output=128, or ranges: prompt=16-256,output=8-64"
    add("--load", metavar="LENGTHS", help=texts)
    tried = (
        "values to try: max_num_seqs=8,16,32 or 8:64 (doubling) or 8:64:8 (steps); may be repeated;"
        " only these keys are searched then (default: the task's own)"
    )
    add("--search", action="append", default=[], metavar="KEY=VALUES", help=tried)
    add("--trials", type=some, default=20, help="most trials (default: 20)")
    add("--seconds", type=positive, default=15.0, help="time of each trial (default: 15)")
    turns = "turns in which the winner and the current settings are measured again (default: 3)"
    add("--repeats", type=whole(0, _MOST), default=3, metavar="N", help=turns)
    add("--seed", type=whole(0, _MOST), default=0, help="seed of the texts (default: 0)")
    place = "default: perf-results/tune-MODEL-..., the same for the same search, which then goes on"
    add("--output", type=Path, metavar="FOLDER", help=f"where results go ({place})")
    write = "put the winner into models.yaml, if it is better beyond noise"
    add("--write", action="store_true", help=write)


def run(args: argparse.Namespace) -> int:
    """Returns 1 where no settings meet the bounds. Raises GeneratorError."""
    from perf.tune.question import Goal, Request
    from perf.tune.tuning import tune

    goal = Goal(args.goal, args.max_p99_ms, args.max_ttft_ms)
    return tune(options_from(Request, args, goal=goal))
