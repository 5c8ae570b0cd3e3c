"""``hf-triton perf gpu``: on an NVIDIA GPU, is all of it right, and how fast is it."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from generator.errors import EXIT_OK
from generator.flag_values import positive
from perf.lab.gpu.jobs import JOBS, PROVE
from perf.lab.gpu.pack import installed, pack
from perf.lab.gpu.run import ROOT, environment
from perf.orphans import end, ends_with_us
from perf.verbs.arguments import pattern

PACK = "pack"
FOLDER = Path("perf-results/gpu")
BUDGET_S = {"prove": 280.0, "race": 440.0, "serve": 540.0}
_GRACE_S = 15.0  # for a server to stop

HELP = "on a GPU: is all of it right, how fast is it, does it serve"
DESCRIPTION = """\
Settles in a few minutes, on a machine with an NVIDIA GPU and without network, what only that shows.
Each job is a process of its own with its own time limit; models have random weights and are made on
the spot. What matters is printed last, the bad at the end: BAD is wrong; SLOW is right, by a slower
runner than it should be; LOST: a CUDA error took the rest of that job along. All of it is in
FOLDER/COMMAND/JOB.log. What is done there, by the same code, is kept: the same command goes on.

  prove   kernels against float64, engines, sampling, weights and encoders against the CPU's tokens
  race    attention, products, draws; 1 B and 8 B beside transformers; tiles; memory
  serve   models.yaml to a tritonserver: answers against `generate`, tokens/s, a killed engine
  pack    no job: makes FOLDER with what a bare machine lacks

Without a GPU the same jobs run on the CPU with tiny models, but for those that need one.
"""
EPILOG = """\
examples:
  hf-triton perf gpu prove                           what takes two to five minutes on a GPU
  hf-triton perf gpu prove --only 'models|rows'      of these jobs alone; --list names them
  hf-triton perf gpu pack .gpu --server              here; then, in the checkout on the GPU machine:
  python perf/lab/gpu prove --wheels .gpu/wheels     nothing installed but torch
  source .gpu/unpack.sh && python perf/lab/gpu serve with a tritonserver of its own
exit codes: 0 all jobs ended well; 1 something is wrong, failed or was cut off; 2 usage; 130
interrupted, what is done is kept"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what is run, on what, with what, for how long, and where results go."""
    parser.epilog = EPILOG
    add = parser.add_argument
    add("command", nargs="?", choices=(*JOBS, PACK), default=PROVE, help=f"default: {PROVE}")
    add("folder", nargs="?", type=Path, default=FOLDER, help=f"default: {FOLDER}")
    add("--budget-s", type=positive, metavar="S", help="end in time for this (280, 440, 540)")
    add("--only", type=pattern, default="", metavar="REGEX", help="jobs that this is found in")
    add("--list", action="store_true", help="name the jobs, and run none")
    add("--device", default="any", metavar="D", help="cuda:1, cpu (default: the first GPU, or cpu)")
    add("--wheels", type=Path, metavar="DIR", help="packages that are missing here")
    add("--python", default="3.12", metavar="X.Y", help="pack: of the GPU machine (default: 3.12)")
    add("--server", action="store_true", help="pack: a tritonserver too, 42 MiB, some minutes")


def run(args: argparse.Namespace) -> int:
    """Runs the jobs and says what they found; returns the exit code. Raises PerfError."""
    if args.command == PACK:
        pack(args.folder, args.python, server=args.server)
        return EXIT_OK
    if args.list:
        for job in JOBS[args.command]:
            if args.only.search(job.name):
                words = " ".join((*job.under, *job.words))
                print(f"{job.name}: at most {job.limit_s:.0f} s: {words}")
        return EXIT_OK
    folder = (args.folder / args.command).resolve()
    budget_s = args.budget_s or BUDGET_S[args.command]
    asked = [args.command, str(folder), str(budget_s), args.device, args.only.pattern]
    with ExitStack() as stack:
        packages = None
        if args.wheels:
            work = stack.enter_context(tempfile.TemporaryDirectory(prefix="perf-gpu-"))
            packages = installed(args.wheels, Path(work))
        process = subprocess.Popen(
            [sys.executable, "-m", "perf.lab.gpu.run", *asked],
            cwd=ROOT,
            env=environment(packages),
            start_new_session=True,
            preexec_fn=ends_with_us(signal.SIGTERM),
        )
        stack.callback(end, process, _GRACE_S)
        return process.wait()
