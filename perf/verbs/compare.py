"""``hf-triton perf compare``: two runs side by side, with ratios, and what of them is noise."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from generator.errors import EXIT_INPUT, EXIT_OK, PerfError
from perf.verbs.arguments import share

if TYPE_CHECKING:
    from perf.report.compare import Comparison

HELP = "two runs side by side, with ratios, and what of them is noise"
DESCRIPTION = """\
Compare two runs load by load: ratios B/A of throughput, latencies, time to first token and
tokens/s, each with what the repeats say of noise (measure with `repeats: 3` or more).
Markdown goes to stdout; --output FOLDER also writes compare.md, compare.json, compare.html.
With --fail-above 5% the exit code is 1 where B is slower than noise and 5 % explain, or
where requests fail in B only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two runs, where to write, and when to fail."""
    for name in ("a", "b"):
        parser.add_argument(
            name, type=Path, metavar=name.upper(), help="a run's folder, or its report.json"
        )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write the three files there")
    parser.add_argument(
        "--html", action="store_true", help="write the page to stdout in the Markdown's place"
    )
    parser.add_argument(
        "--fail-above",
        type=share,
        metavar="SHARE",
        help="exit with 1 where B is slower than noise and this explain, such as 5%%",
    )
    parser.add_argument(
        "--ignore",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=(),
        metavar="NAME,...",
        help="match loads that differ in these: target, endpoint, a setting's name, ...",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the comparison. Returns 1 where --fail-above says so. Raises PerfError."""
    from perf.report import compare
    from perf.report.schema import encodable, read_results

    found = compare.compare(read_results(args.a), read_results(args.b), args.ignore)
    if args.output:
        try:
            compare.write_comparison(args.output, found)
        except OSError as error:
            raise PerfError(f"{error.filename or args.output}: {error.strerror}") from None
    to_text = compare.to_html if args.html else compare.to_markdown
    print(encodable(to_text(found)), end="")
    return EXIT_OK if args.fail_above is None else _judged(found, args.fail_above)


def _judged(found: Comparison, bound: float) -> int:
    """Says what is too slow in B. Raises PerfError where there is no telling."""
    from perf.report.compare import NOT_JUDGED, failures
    from perf.report.points import load_words

    if not found.is_judged:
        raise PerfError(f"--fail-above: {NOT_JUDGED}")
    lines = [f"slower: {failure}" for failure in failures(found, bound)]
    lines += [f"fails in B only: {load_words(p.a.load)}" for p in found.pairs if p.fails_anew]
    for point in found.only_a:
        print(f"hf-triton: not in B: {load_words(point.load)}", file=sys.stderr)
    if single := found.num_not_judged:
        print(f"hf-triton: {single} loads have no repeats and are not judged", file=sys.stderr)
    for line in lines:
        print(f"hf-triton: {line}", file=sys.stderr)
    return EXIT_INPUT if lines else EXIT_OK
