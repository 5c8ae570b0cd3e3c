"""The command line of the scenarios."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from generator.errors import GeneratorError
from perf.load.process import LevelError
from perf.report.head import circumstances, here
from perf.report.schema import Run
from perf.scenarios.comparisons import COMPARISONS, lines_of, measure, problems_of

DESCRIPTION = """\
Answers one question each on this machine, prints a Markdown table, and writes it into PATH.md and
every figure into PATH.json.

scenarios:
"""
EPILOG = """\
example:
  python -m perf.scenarios forwarding --rounds 3
exit codes: 0 measured; 1 an answer was wrong; 2 usage; 130 interrupted"""


def write(output: Path, run: Run, lines: list[str], figures: list[dict[str, Any]]) -> None:
    """Writes ``output``.json and ``output``.md, and prints the latter."""
    output.parent.mkdir(parents=True, exist_ok=True)
    page = "\n".join([f"# {run.title}", "", *lines, "", *circumstances(run), ""])
    values = json.dumps({**asdict(run), "measured": figures}, indent=1) + "\n"
    Path(f"{output}.json").write_text(values, encoding="utf-8")
    Path(f"{output}.md").write_text(page, encoding="utf-8")
    print(page)


def parse_args(argv: list[str]) -> argparse.Namespace:
    told = "\n".join(f"  {name:16} {each.question}" for name, each in COMPARISONS.items())
    parser = argparse.ArgumentParser(
        prog="python -m perf.scenarios",
        description=DESCRIPTION + told,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("name", choices=COMPARISONS, metavar="NAME")
    add("--rounds", type=int, default=3, metavar="N", help="how often each is measured: 3")
    add("--level-s", type=float, default=10.0, metavar="S", help="seconds of a level: 10")
    add("--output", type=Path, metavar="PATH", help="perf-results/NAME")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    args = parse_args(argv)
    comparison = COMPARISONS[args.name]
    command = shlex.join(["python", "-m", "perf.scenarios", *argv])
    run = Run(kind=args.name, title=comparison.question, **here(command))
    try:
        with tempfile.TemporaryDirectory(prefix="perf-") as folder:
            measured = measure(comparison, Path(folder), args.rounds, args.level_s)
    except KeyboardInterrupt:
        return 130
    except (GeneratorError, LevelError, subprocess.CalledProcessError) as error:
        print(f"perf.scenarios: {error}", file=sys.stderr)
        return 1
    lines, figures = lines_of(comparison, measured), [asdict(each) for each in measured]
    output = args.output or Path("perf-results", args.name)
    write(output, run, lines, figures)
    problems = problems_of(measured)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
