"""Measure on an NVIDIA GPU: the command line. Also runs as a script: ``python perf/gpu``."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

if not __package__:  # a script's folder is on the path, the checkout is not
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from perf.gpu.environment import WheelError, wheels_in
from perf.gpu.plan import SECTIONS, chosen
from perf.gpu.run import NoDeviceError, Run

DESCRIPTION = """\
Measures on a machine with an NVIDIA GPU, without network, one section after the other, each in a
process of its own with its own time limit. Models have random weights and are made on the spot.
"""
EPILOG = """\
examples:
  python -m perf.gpu
  python perf/gpu --sections ceilings,decode-1b,decode-8b --budget-s 560
  python perf/gpu --sections server-1b --pytriton-wheel nvidia_pytriton-0.7.0-...whl --wheels whl/
  python -m perf.gpu --device cpu --tiny      tries the script itself, without a GPU
A section that is measured again takes the place of what PATH.json has of it; the others stay there.
exit codes: 0 measured (or skipped, with the reason); 1 a section failed or was cut off, or there is
nothing to measure on; 2 usage; 130 interrupted"""


def parse_args(argv: list[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m perf.gpu",
        description=DESCRIPTION + _sections(),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--sections", type=section_names, metavar="S,S,...", help="instead of all that fit")
    add("--large", action="store_true", help="also the sections marked large")
    add("--budget-s", type=float, metavar="S", help="stop all in time for this; default: no limit")
    add("--device", default="cuda", metavar="D", help="cuda, cuda:1, or cpu (default cuda)")
    add("--tiny", action="store_true", help="tiny shapes: figures that mean nothing, in a minute")
    add("--pytriton-wheel", type=Path, metavar="PATH", help="the embedded server's wheel")
    add("--wheels", type=Path, metavar="DIR", help="wheels of packages that are missing here")
    add("--libpython", type=Path, metavar="PATH", help="libpython3.X.so.1.0, if not installed")
    add("--work-dir", type=Path, metavar="DIR", help="for environment and models (default: /tmp)")
    add("--seed", type=int, default=0, help="of weights and load (default 0)")
    add("--output", type=Path, metavar="PATH", help=f"PATH.md, PATH.json (default {_output()})")
    args = parser.parse_args(argv)
    if args.device == "cpu" and not args.tiny:
        parser.error("--device cpu tries the script only: it needs --tiny")
    if args.budget_s is not None and not args.budget_s > 0:
        parser.error(f"--budget-s: got {args.budget_s:g}, expected more than 0 seconds")
    if args.device == "cuda":
        args.device = "cuda:0"
    tried = Path(tempfile.gettempdir(), "perf-gpu-tiny")  # its figures mean nothing
    args.output = args.output or (tried if args.tiny else _output())
    return args


def section_names(text: str) -> tuple[str, ...]:
    """``a,b`` out of SECTIONS."""
    found = tuple(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise argparse.ArgumentTypeError(f"got {name!r}, expected some of {known}")
    return found


def _sections() -> str:
    lines = [
        f"  {section.name:<11} {section.title}, at most {section.limit_s:.0f} s"
        f"{' (large)' if section.is_large else ''}"
        for section in SECTIONS.values()
    ]
    return "\n".join(["sections:", *lines])


def _output() -> Path:
    """Where results go: ``$OUT`` where a machine has one, else among the others."""
    out = os.environ.get("OUT")
    return Path(out, "gpu") if out else Path("perf/results/gpu")


def main(argv: list[str]) -> int:
    """Measure, print the tables, write the results; return the exit code."""
    args = parse_args(argv)
    work_dir = Path(tempfile.mkdtemp(prefix="perf-gpu-", dir=args.work_dir))
    try:
        wheels = wheels_in(args.wheels) if args.wheels else []
        wheels += [args.pytriton_wheel] if args.pytriton_wheel else []
        run = Run(
            device=args.device,
            tiny=args.tiny,
            seed=args.seed,
            output=args.output.resolve(),
            folder=work_dir,
            budget_s=args.budget_s,
            command=shlex.join(["python", "-m", "perf.gpu", *argv]),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        run.prepare(wheels, args.libpython)
        is_good = run.measure(chosen(args.sections, large=args.large))
    except KeyboardInterrupt:
        return 130
    except (NoDeviceError, WheelError, OSError, ValueError) as error:
        print(f"perf.gpu: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
