"""``hf-triton perf compare``: compares two runs, with ratios and their noise."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_OK, PerfError
from generator.flag_values import number

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
    add("--fail-above", type=_share, metavar="SHARE", help=worse)
    add(
        "--ignore",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="NAME,...",
        help="match loads that differ in these: target, endpoint, a setting's name, ...",
    )


def _share(text: str) -> float:
    """Parses ``5%`` or ``0.05`` as 0.05. Raises ArgumentTypeError."""
    is_percent = text.rstrip().endswith("%")
    found = number(text.rstrip().removesuffix("%"))
    if found is None or found < 0 or (not is_percent and found >= 1):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected per cent as in 5%, or 0.05")
    return found / 100 if is_percent else found


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
