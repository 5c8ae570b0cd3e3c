"""NVIDIA's perf_analyzer: found on PATH or in tritonclient's wheel, and run. The wheel's needs two
libraries that systems lack under these names; nvidia-pytriton's wheel has both under names of its
own, so links to them are made in a folder of the user's cache.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path, PurePosixPath

from generator.errors import PerfError, mask_tokens
from generator.python_modules import end_with_parent
from hf_triton.runtime.disk_cache import cache_folder, is_made_private
from hf_triton.tritonserver.binary import link_all
from perf.sweep.plan import Planned

EXPORT_FILE = "profile_export.json"
NAME = "perf_analyzer"
_LIBRARIES = {
    "libb64.so.0d": "nvidia_pytriton.libs/libb64-*.so.0d",
    "libcudart.so.12": "nvidia_pytriton.libs/libcudart-*.so.12*",
}
_VERSION = re.compile(r"Perf Analyzer Version (\S+)")
_START_TIMEOUT_S = 30.0
_MOST_SAID = 400
_UNSTABLE = "Failed to obtain stable measurement"
# The second where Triton's statistics counted none either.
_NOTHING_DONE = ("No valid requests recorded", "failed to find the requested model version")
_EMPTY_PHRASES = ("Failed to retrieve results", "WARNING", "Usage:", "perf_analyzer: ")
_THREAD = re.compile(r"^Thread \[\d+\] had error: ")
_FEW_REQUESTS = 4
_ALL_STABLE = 999999.0  # per cent; windows that differ by less are stable
_WINDOWS = 3  # whose throughput and latency have to agree: perf_analyzer's own rule


@dataclass(frozen=True)
class Analyzer:
    """A working perf_analyzer: path, version, origin, and additions to its environment."""

    path: str
    version: str
    origin: str
    environment: Mapping[str, str] = field(default_factory=dict)


def find() -> Analyzer:
    """The one on PATH, else the installed tritonclient's. Raises PerfError."""
    installed = installed_file("tritonclient", f"bin/{NAME}")
    candidates = {"PATH": shutil.which(NAME), "the installed tritonclient": installed}
    reasons = []
    for origin, path in candidates.items():
        said, environment = _ask(str(path), {}) if path else "none", dict[str, str]()
        if any(library in said for library in _LIBRARIES):
            environment = _with_libraries()
            said = _ask(str(path), environment)
        if path and (found := _VERSION.search(said)):
            return Analyzer(str(Path(path).absolute()), found[1], origin, environment)
        last = said.strip().rpartition("\n")[2] or "it says nothing"
        reasons.append(f"\n    {origin}: {path or 'not there'}: {last}")
    raise PerfError(
        f"no perf_analyzer runs here:{''.join(reasons)}\n"
        "pip install tritonclient==2.51.0 nvidia-pytriton brings one for Linux, NVIDIA's SDK "
        "container has one: --dry-run prints the commands to run there"
    )


def _ask(path: str, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [path, "--version"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return done.stdout + done.stderr


def _with_libraries() -> dict[str, str]:
    """An LD_LIBRARY_PATH with the missing libraries, where they are installed; not in a folder
    where others could change them.
    """
    folder = cache_folder("libraries", NAME)
    if not is_made_private(folder):
        return {}
    found = ((name, installed_file("nvidia-pytriton", it)) for name, it in _LIBRARIES.items())
    link_all({name: file for name, file in found if file}, folder)
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(path for path in paths if path)}


def installed_file(distribution: str, pattern: str) -> Path | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(distribution) or []:
            path = Path(str(file.locate())).resolve()
            if PurePosixPath(str(file)).match(pattern) and path.is_file():
                return path
    return None


def warm_up_command(planned: Planned) -> list[str]:
    per_second = math.ceil(planned.load.request_rate or 0)
    count = max(planned.scenario.measurement.warm_up_requests, planned.callers, per_second)
    return [*_start(planned), "--request-count", str(count)]


def measuring_command(planned: Planned, *, forced: bool = False, few: bool = False) -> list[str]:
    """``forced``: takes three windows, stable or not; ``few``: windows of a few requests, which may
    take longer than a window's seconds.
    """
    measuring = planned.scenario.measurement
    windows = ["--measurement-interval", str(round(measuring.window_s * 1000))]
    if few:
        count = str(max(_FEW_REQUESTS, planned.callers))
        windows = ["--measurement-mode", "count_windows", "--measurement-request-count", count]
    percent = _ALL_STABLE if forced else measuring.stability_percent
    trials = _WINDOWS if forced else measuring.max_trials
    rule = ["--stability-percentage", f"{percent:g}", "--max-trials", str(trials)]
    return [*_start(planned), *windows, *rule, "--profile-export-file", EXPORT_FILE]


def _start(planned: Planned) -> list[str]:
    load, model, addresses = planned.load, planned.target.model, planned.server.addresses
    http, grpc = ("-u", addresses.http), ("-u", addresses.grpc, "-i", "grpc")
    command = [NAME, "-m", model, *(grpc if load.endpoint.startswith("grpc") else http)]
    if load.endpoint == "grpc-stream":
        command += ["--streaming"]
    if load.endpoint == "http-generate":
        # Its client of OpenAI's API posts a payload as it stands to any path.
        command += ["--service-kind", "openai", "--endpoint", f"v2/models/{model}/generate"]
    command += ["--async", "--input-data", planned.input_file]
    if load.batch_size > 1:
        command += ["-b", str(load.batch_size)]
    if load.concurrency:
        return [*command, "--concurrency-range", str(load.concurrency)]
    return [*command, "--request-rate-range", f"{load.request_rate:g}"]


@dataclass(frozen=True)
class Ended:
    """The end of a run: ``said`` is its stderr, or why it was killed."""

    code: int
    said: str

    @property
    def is_unstable(self) -> bool:
        """The only fault was that its windows did not agree."""
        return self.code != 0 and _UNSTABLE in self.said

    @property
    def has_no_requests(self) -> bool:
        return self.code != 0 and any(text in self.said for text in _NOTHING_DONE)

    def reason(self) -> str:
        if self.has_no_requests:
            return "no request was done within a window; raise measurement.window_s"
        lines = [line.strip() for line in self.said.splitlines()]
        telling = [line for line in lines if line and not line.startswith(_EMPTY_PHRASES)]
        line = _THREAD.sub("", telling[0]) if telling else f"ended with exit code {self.code}"
        return mask_tokens(line)[:_MOST_SAID]


def run(analyzer: Analyzer, command: Sequence[str], folder: Path, timeout_s: float) -> Ended:
    """Kills it after ``timeout_s``. Raises OSError where it can't be started."""
    try:
        done = subprocess.run(
            [analyzer.path, *command[1:]],
            cwd=folder,
            env={**os.environ, **analyzer.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,  # we handle the terminal's Ctrl-C
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
    except subprocess.TimeoutExpired:
        return Ended(-1, f"not done after {timeout_s:.0f} s")
    return Ended(done.returncode, done.stderr)
