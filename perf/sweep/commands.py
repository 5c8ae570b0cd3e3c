"""The command lines of perf_analyzer that measure a load. All run in the run's folder."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from perf.sweep.plan import Planned
from perf.sweep.scenario.model import SEVERAL_TIMES

EXPORT_FILE = "profile_export.json"
ANALYZER = "perf_analyzer"
MOUNTED = "/sweep"  # the run's folder, in a container
_FEW_REQUESTS = 4
_ALL_STABLE = 999999.0  # per cent: what differs by less counts as stable


def warm_up_command(planned: Planned) -> list[str]:
    """A few requests whose figures are thrown away; perf_analyzer wants a second's at least."""
    per_second = math.ceil(planned.load.request_rate or 0)
    count = max(planned.measuring.warm_up_requests, planned.callers, per_second)
    return [*_start(planned), "--request-count", str(count)]


def measuring_command(planned: Planned) -> list[str]:
    measuring = planned.measuring
    rule = (measuring.stability_percent, measuring.max_trials)
    return _measuring(planned, measuring.window_requests, *rule)


def unstable_command(planned: Planned) -> list[str]:
    """Three such windows, however they differ."""
    return _measuring(planned, planned.measuring.window_requests, _ALL_STABLE, SEVERAL_TIMES)


def counting_command(planned: Planned) -> list[str]:
    """Three windows of a few requests each, for those that take longer than a window."""
    return _measuring(planned, max(_FEW_REQUESTS, planned.callers), _ALL_STABLE, SEVERAL_TIMES)


def is_forced(command: Sequence[str]) -> bool:
    """Whether it measures three windows however they differ."""
    return f"{_ALL_STABLE:g}" in command


def container_commands(commands: Sequence[Sequence[str]], folder: Path, image: str) -> list[str]:
    """For machines where no perf_analyzer runs: a line for each command, in NVIDIA's SDK
    container.
    """
    start = ["docker", "run", "--rm", "--network=host", "-v", f"{folder}:{MOUNTED}", "-w", MOUNTED]
    lines = []
    for number, command in enumerate(commands, 1):
        # Each its own: perf_analyzer overwrites no file.
        command = [f"{number}_{EXPORT_FILE}" if w == EXPORT_FILE else w for w in command]
        lines.append(shlex.join([*start, image, *command]))
    return lines


def _measuring(planned: Planned, count: int | None, percent: float, trials: int) -> list[str]:
    """Windows of ``count`` requests, else of the scenario's seconds."""
    if count is None:
        windows = ["--measurement-interval", str(round(planned.measuring.window_s * 1000))]
    else:
        windows = ["--measurement-mode", "count_windows"]
        windows += ["--measurement-request-count", str(count)]
    rule = ["--stability-percentage", f"{percent:g}", "--max-trials", str(trials)]
    return [*_start(planned), *windows, *rule, "--profile-export-file", EXPORT_FILE]


def _start(planned: Planned) -> list[str]:
    """Who sends what where, and how much at once."""
    load, model, addresses = planned.load, planned.target.model, planned.server.addresses
    http, grpc = ("-u", addresses.http), ("-u", addresses.grpc, "-i", "grpc")
    analyzer = (ANALYZER, "-m", model)
    command = {
        "http-infer": [*analyzer, *http],
        "grpc-infer": [*analyzer, *grpc],
        "grpc-stream": [*analyzer, *grpc, "--streaming"],
        # Its client of OpenAI's API posts a payload as it stands to any path.
        "http-generate": [
            *(*analyzer, *http, "--service-kind", "openai"),
            *("--endpoint", f"v2/models/{model}/generate"),
        ],
    }[load.endpoint]
    command += ["--async", "--input-data", planned.input_file]
    if load.batch_size > 1:
        command += ["-b", str(load.batch_size)]
    if load.concurrency:
        return [*command, "--concurrency-range", str(load.concurrency)]
    command += ["--request-rate-range", f"{load.request_rate:g}"]
    return [*command, "--request-distribution", planned.distribution]
