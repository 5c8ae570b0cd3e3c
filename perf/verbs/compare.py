"""``hf-triton perf compare``: compares two runs, with ratios and their noise."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_OK, PerfError
from perf.verbs.arguments import share

HELP = "two runs side by side, with ratios, and which of them are noise"
DESCRIPTION = """\
Compare two runs load by load: ratios B/A of throughput, latencies, time to first token and
tokens/s, each with what the repeats say of noise (measure with `repeats: 3` or more).
Markdown goes to stdout. With --fail-above 5% the exit code is 1 where B is slower than noise and
5 % explain, or where requests fail in B only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for name in ("a", "b"):
        add(name, type=Path, metavar=name.upper(), help="a run's folder, or its report.json")
    worse = "exit with 1 if B is slower by more than noise and this share, such as 5%%"
    add("--fail-above", type=share, metavar="SHARE", help=worse)
    add(
        "--ignore",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="NAME,...",
        help="match loads that differ in these: target, endpoint, a setting's name, ...",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; returns 1 where --fail-above is exceeded. Raises PerfError."""
    from hf_triton.tritonserver.log import say
    from perf.report.compare import NOT_JUDGED, compare, failures, to_markdown
    from perf.report.schema import read_run

    found = compare(read_run(args.a), read_run(args.b), args.ignore)
    print(to_markdown(found), end="")
    if args.fail_above is None:
        return EXIT_OK
    if not found.is_judged:
        raise PerfError(f"--fail-above: {NOT_JUDGED}")
    lines = failures(found, args.fail_above)
    for line in lines:
        say(line)
    return EXIT_INPUT if lines else EXIT_OK
