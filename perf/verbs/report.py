"""``hf-triton perf report``: writes a run as a page, a table and one document."""

from __future__ import annotations

import argparse
from pathlib import Path

from generator.errors import EXIT_OK, PerfError
from generator.flag_values import positive

HELP = "write a run's page and table"
DESCRIPTION = """\
Write what people read of a run beside its report.json: run.html (one page, no network) and run.md.
Every command that measures does so at its end; here it is done again, or with bounds of yours."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a run, as perf sweep makes")
    for flag, what in (("--p99-ms", "latency"), ("--ttft-p99-ms", "time to first token")):
        parser.add_argument(
            flag,
            type=positive,
            metavar="MS",
            help=f"say which load has the highest throughput with a p99 of the {what} of at most "
            "this (default: twice the lowest p99 of the latency)",
        )


def run(args: argparse.Namespace) -> int:
    """Writes the files and prints their names. Raises PerfError."""
    from perf.report.best import Bounds
    from perf.report.rendering import RENDERINGS, write_renderings

    folder: Path = args.folder
    if folder.is_file():
        raise PerfError(f"{folder}: got a file, expected the folder of a run")
    try:
        write_renderings(folder, Bounds(args.p99_ms, args.ttft_p99_ms))
    except OSError as error:
        raise PerfError(f"{error.filename or folder}: {error.strerror}") from None
    print("\n".join(str(folder / name) for name in RENDERINGS))
    return EXIT_OK
