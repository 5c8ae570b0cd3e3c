"""``hf-triton perf gpu``: on an NVIDIA GPU, is all of it right, and how fast is it."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from generator.errors import EXIT_OK, PerfError
from generator.flag_values import positive
from perf.lab.gpu.jobs import JOBS, PROVE
from perf.lab.gpu.run import ROOT, environment
from perf.orphans import end, ends_with_us
from perf.verbs.arguments import pattern

WHEELS = ("transformers==5.23.0", "torchao==0.18.0", "psutil")
_SERVER = "nvidia-pytriton==0.7.0"
_SERVED = (  # numpy 1: the stub crashes on arrays of numpy 2
    *("numpy==1.26.4", "transformers==5.23.0", "msgspec", "httptools", "hpack", "psutil"),
    *("tritonclient==2.51.0", "protobuf==4.25.9", "python-rapidjson", "llguidance"),
)
_PURE = ("tritonclient", "transformers")  # tritonclient's other wheel carries perf_analyzer
_GLIBC = (39, 36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
_TAGS = (*(f"manylinux_2_{n}_x86_64" for n in _GLIBC), "manylinux2014_x86_64", "any")
_UNPACK = """\
# source this in the checkout's root: a tritonserver and its Python's packages, before the machine's
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p /tmp/triton && tar -C /tmp/triton -xf "$here/site.tar.xz"
export PYTHONPATH="/tmp/triton:$PWD${PYTHONPATH:+:$PYTHONPATH}"
"""

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


def pack(folder: Path, python: str, *, server: bool) -> None:
    """Fills ``folder/wheels`` for a Python of this version, and with ``server`` writes
    ``site.tar.xz`` and ``unpack.sh``. Raises PerfError where pip does not find something.
    """
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    _download(WHEELS, python, wheels)
    if server:
        with tempfile.TemporaryDirectory() as work:
            _pack_server(folder / "site.tar.xz", python, Path(work))
        (folder / "unpack.sh").write_text(_UNPACK, encoding="utf-8")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size / 2**20:6.1f} MiB  {path}")


def installed(wheels: Path, to: Path) -> Path:
    """The wheels of a folder, unpacked. Raises PerfError."""
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise PerfError(
            f"--wheels {wheels}: {'no *.whl in it' if wheels.is_dir() else 'no folder'}"
        )
    _pip("--wheels", "install", "--no-index", "--no-compile", "--target", str(to), *found)
    return to


def _download(names: Iterable[str], python: str, to: Path) -> None:
    words = ["download", "--only-binary=:all:", "--python-version", python]
    words += ["--implementation", "cp", "-d", str(to)]
    for name in names:
        tags = ("any",) if name.startswith(_PURE) else _TAGS
        flags = [word for tag in tags for word in ("--platform", tag)]
        _pip(name, *words, *flags, name)


def _pip(what: str, verb: str, *words: str) -> None:
    """Raises PerfError, which names ``what``."""
    command = [sys.executable, "-m", "pip", verb, "-q", "--no-deps", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PerfError(f"{what}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")


def _pack_server(archive: Path, python: str, work: Path) -> None:
    whole, kept, wheels = work / "whole", work / "kept", work / "wheels"
    _download((_SERVER,), python, work)
    _unzip(work, whole)
    for path in _server_files(whole, python):
        target = kept / path.relative_to(whole)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        target.chmod(0o755)
    for info in whole.glob("nvidia_pytriton*.dist-info"):
        shutil.copytree(info, kept / info.name)
    _download(_SERVED, python, wheels)
    _unzip(wheels, kept)
    for tests in [path for path in (kept / "numpy").rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests)
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for path in sorted(kept.iterdir()):
            tar.add(path, arcname=path.name)


def _unzip(folder: Path, to: Path) -> None:
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(to)


def _server_files(whole: Path, python: str) -> Iterator[Path]:
    """The server, the Python backend with one stub, the cache, and what they load of the wheel's
    own libraries.
    """
    home, libraries = whole / "pytriton" / "tritonserver", whole / "nvidia_pytriton.libs"
    stub = home / "python_backend_stubs" / python / "triton_python_backend_stub"
    backend = [path for path in (home / "backends" / "python").iterdir() if path.is_file()]
    queue = [home / "bin" / "tritonserver", stub, *backend, *home.glob("caches/**/*.so*")]
    found = set(queue)
    yield from queue
    while queue:
        said = subprocess.run(["readelf", "-d", queue.pop()], capture_output=True, text=True)
        needed = [line for line in said.stdout.splitlines() if "NEEDED" in line]
        for path in (libraries / line.split("[")[1].split("]")[0] for line in needed):
            if path.is_file() and path not in found:
                found.add(path)
                queue.append(path)
                yield path
