"""``hf-triton perf gpu``: on an NVIDIA GPU, is all of it right, and how fast is it."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from generator.errors import EXIT_INPUT, EXIT_OK, PerfError
from generator.flag_values import positive
from perf.gpu.plan import SECTIONS, chosen
from perf.verbs.arguments import names

OUTPUT = Path("perf-results/gpu")
BUDGET_S = 600.0

HELP = "on a GPU: does all of it agree with the CPU, how fast is it, and of what limit"
DESCRIPTION = """\
Measures on a machine with an NVIDIA GPU, without network, the most telling section first, each in a
process of its own with its own time limit. Models have random weights and are made on the spot.
Writes PATH.md and PATH.json as it goes. What an earlier run of the same code, on the same device,
with the same versions has finished is kept: the same command goes on where one was cut off.

Where there is no GPU, the whole plan runs on a fake one, with tiny models on the CPU: it says what
agrees, and gives no times.

"""


def _sections() -> str:
    lines = [
        f"  {section.name:<14} {section.title}, at most {section.limit_s:.0f} s"
        f"{' (large)' if section.is_large else ''}"
        for section in SECTIONS.values()
    ]
    return "\n".join(["sections:", *lines])


DESCRIPTION += _sections()
EPILOG = """\
examples:
  hf-triton perf gpu                              ten minutes; again: the rest of the plan
  hf-triton perf gpu --wheels wheels/             with packages that are missing here, and a server
  hf-triton perf gpu --sections agree-ways --again
  python perf/gpu --wheels wheels/                the same from a checkout, nothing installed
exit codes: 0 measured, or skipped for a reason; 1 something does not agree, failed or was cut off;
2 usage; 130 interrupted, what was measured is kept"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is measured, on what, with what, for how long, and where results go."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--sections", type=names(SECTIONS), metavar="S,S,...", help="instead of all but large ones")
    add("--large", action="store_true", help="also the sections marked large")
    add("--again", action="store_true", help="measure anew what the results have already")
    add(
        "--budget-s",
        type=positive,
        default=BUDGET_S,
        metavar="S",
        help=f"stop all in time for this (default: {BUDGET_S:.0f})",
    )
    add("--device", metavar="D", help="cuda:1, or fake (default: the first GPU, else fake)")
    add(
        "--wheels", type=Path, metavar="DIR", help="wheels of what is missing here, nvidia-pytriton"
    )
    add("--libpython", type=Path, metavar="PATH", help="libpython3.X.so.1.0, if not installed")
    add("--work-dir", type=Path, metavar="DIR", help="for environment and models (default: /tmp)")
    add("--seed", type=int, default=0, help="of weights and load (default: 0)")
    add(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="PATH",
        help=f"writes PATH.md and PATH.json (default: {OUTPUT})",
    )


def run(args: argparse.Namespace) -> int:
    """Measures, and prints the report; returns the exit code. Raises PerfError."""
    from perf.gpu.environment import wheels_in
    from perf.gpu.run import Run

    work_dir = Path(tempfile.mkdtemp(prefix="perf-gpu-", dir=args.work_dir))
    try:
        run = Run(
            device="cuda:0" if args.device == "cuda" else args.device or "",
            seed=args.seed,
            output=args.output.resolve(),
            folder=work_dir,
            budget_s=args.budget_s,
            command=_command(sys.argv[1:]),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            again=args.again,
        )
        run.prepare(wheels_in(args.wheels) if args.wheels else [], args.libpython)
        is_good = run.measure(chosen(args.sections, large=args.large))
    except (OSError, ValueError) as error:
        raise PerfError(str(error)) from error
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    return EXIT_OK if is_good else EXIT_INPUT


def _command(words: list[str]) -> str:
    """What measures the same, also where a script was run: that one has no verbs."""
    return shlex.join(["hf-triton", *(["perf", "gpu"] if words[:1] != ["perf"] else []), *words])
