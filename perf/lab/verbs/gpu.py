"""``hf-triton perf gpu``: checks correctness and speed on an NVIDIA GPU. Where only torch is
installed, run ``python -m perf.lab.verbs.gpu`` with ``--wheels``.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from generator.errors import EXIT_INTERRUPTED, EXIT_OK, GeneratorError, PerfError
from perf.orphans import end, killed_with_parent, our_environment
from perf.verbs.arguments import pattern
from perf.verbs.stopping import stopping_as_interrupts

WHEELS = ("transformers==5.23.0", "psutil")
_TAGS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")

CHECK, TIME, PACK = "check", "time", "pack"
FOLDER = Path("perf-results/gpu")
_GRACE_S = 15.0

HELP = "on a GPU: is all of it right, how fast is it"
DESCRIPTION = """\
Settles in a few minutes, on a machine with an NVIDIA GPU and without network, what only that shows.
Models have random weights and are made on the spot. BAD is wrong; what is logged says which
attention and which graphs were taken, and why not others.

  check   each kind of decoder beside the CPU's tokens: captured and eager, over pages of NaN, and
          after a step that failed
  time    tokens/s of 1, 64 and 256 sequences, of a 135 M and a 7 B Llama, beside what the card's
          bandwidth allows; and with torch.compile on their layers
  pack    makes FOLDER/wheels with what a bare machine lacks

Without a GPU the same runs on the CPU with tiny models.
"""
EPILOG = """\
examples:
  hf-triton perf gpu check                           about four minutes on a GPU
  hf-triton perf gpu check --only 'llama|mamba'      of these alone
  hf-triton perf gpu pack .gpu                       here; then, in the checkout on the GPU machine,
  python -m perf.lab.verbs.gpu check --wheels .gpu/wheels      with nothing installed but torch
exit codes: 0 all is right; 1 something is wrong or failed; 2 usage; 130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("command", nargs="?", choices=(CHECK, TIME, PACK), default=CHECK, help=f"default: {CHECK}")
    add("folder", nargs="?", type=Path, default=FOLDER, help=f"pack: where to (default: {FOLDER})")
    add("--only", type=pattern, default="", metavar="REGEX", help="models that this is found in")
    add("--device", default="any", metavar="D", help="cuda:1, cpu (default: the first GPU, or cpu)")
    add("--wheels", type=Path, metavar="DIR", help="packages that are missing here")
    add("--python", default="3.12", metavar="X.Y", help="pack: of the GPU machine (default: 3.12)")


def run(args: argparse.Namespace) -> int:
    """Runs the checks in a child process; returns the exit code. Raises PerfError."""
    if args.command == PACK:
        pack(args.folder, args.python)
        return EXIT_OK
    with ExitStack() as stack:
        environment = {**our_environment(), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        if args.wheels:
            work = stack.enter_context(tempfile.TemporaryDirectory(prefix="perf-gpu-"))
            packages = installed(args.wheels, Path(work))
            environment["PYTHONPATH"] = f"{packages}{os.pathsep}{environment['PYTHONPATH']}"
        process = subprocess.Popen(
            [sys.executable, "-m", "perf.lab.gpu", args.command, args.device, args.only.pattern],
            env=environment,
            start_new_session=True,
            preexec_fn=killed_with_parent(signal.SIGTERM),
        )
        stack.callback(end, process, _GRACE_S)
        return process.wait()


def pack(folder: Path, python: str) -> None:
    """Downloads wheels for this Python version into ``folder/wheels``. Raises PerfError where pip
    can't find one.
    """
    flags = [word for tag in _TAGS for word in ("--platform", tag)]
    words = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", *flags]
    _pip("download", *words, "-d", str(folder / "wheels"), *WHEELS)


def installed(wheels: Path, to: Path) -> Path:
    """Unpacks the wheels of a folder and returns where. Raises PerfError."""
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise PerfError(f"--wheels {wheels}: no *.whl there")
    _pip("install", "--no-index", "--no-compile", "--target", str(to), *found)
    return to


def _pip(verb: str, *words: str) -> None:
    """Runs pip. Raises PerfError with the last line of its output."""
    command = [sys.executable, "-m", "pip", verb, "--no-deps", *words]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise PerfError((done.stderr.strip().splitlines() or [f"pip {verb} failed"])[-1])


def main(argv: list[str]) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("perf.lab.verbs.gpu", description=DESCRIPTION)
    parser.formatter_class = raw
    add_arguments(parser)
    try:
        with stopping_as_interrupts():
            return run(parser.parse_args(argv))
    except GeneratorError as error:
        print(f"perf.lab.verbs.gpu: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
