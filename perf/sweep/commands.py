"""The command lines that measure a load: perf_analyzer's, and those of what sends instead of it
where it can't. All run in the run's folder.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from perf.sweep.plan import Planned
from perf.sweep.scenario.model import SEVERAL_TIMES, Addresses

EXPORT_FILE = "profile_export.json"
ANALYZER, SSE_LOAD = "perf_analyzer", ("python", "-m", "perf.sweep.sse_load")
MOUNTED = "/sweep"  # the run's folder, in a container
_FEW_REQUESTS = 4
_ALL_STABLE = 999999.0  # per cent: what differs by less counts as stable


def warm_up_command(planned: Planned, addresses: Addresses) -> list[str]:
    """A few requests whose figures are thrown away; perf_analyzer wants a second's at least."""
    per_second = math.ceil(planned.load.request_rate or 0)
    count = max(planned.measuring.warm_up_requests, planned.callers, per_second)
    return [*_start(planned, addresses), "--request-count", str(count)]


def measuring_command(planned: Planned, addresses: Addresses) -> list[str]:
    """The measurement itself."""
    measuring = planned.measuring
    return _measuring(planned, addresses, measuring.stability_percent, measuring.max_trials)


def unstable_command(planned: Planned, addresses: Addresses) -> list[str]:
    """Three such windows, however they differ."""
    return _measuring(planned, addresses, _ALL_STABLE, SEVERAL_TIMES)


def counting_command(planned: Planned, addresses: Addresses) -> list[str]:
    """Three windows of a few requests each, for those that take longer than a window."""
    few = max(_FEW_REQUESTS, planned.callers)
    return _measuring(planned, addresses, _ALL_STABLE, SEVERAL_TIMES, few)


def is_forced(command: Sequence[str]) -> bool:
    """Whether it measures three windows however they differ."""
    return f"{_ALL_STABLE:g}" in command


def container_commands(commands: Sequence[Sequence[str]], folder: Path, image: str) -> list[str]:
    """For machines where no perf_analyzer runs: a line for each command, in NVIDIA's SDK container
    where it is perf_analyzer's.
    """
    lines = []
    for number, command in enumerate(commands, 1):
        # Each its own: perf_analyzer overwrites no file.
        command = [f"{number}_{EXPORT_FILE}" if w == EXPORT_FILE else w for w in command]
        if command[0] == ANALYZER:
            start = ["docker", "run", "--rm", "--network=host", "-v", f"{folder}:{MOUNTED}"]
            command = [*start, "-w", MOUNTED, image, *command]
        lines.append(shlex.join(command))
    return lines


def _measuring(
    planned: Planned,
    addresses: Addresses,
    percent: float,
    trials: int,
    num_requests: int | None = None,
) -> list[str]:
    """``num_requests`` in a window, where the scenario's windows are of no use."""
    measuring = planned.measuring
    count = num_requests or measuring.window_requests
    if count is None:
        windows = ["--measurement-interval", str(round(measuring.window_s * 1000))]
    else:
        windows = ["--measurement-mode", "count_windows"]
        windows += ["--measurement-request-count", str(count)]
    rule = ["--stability-percentage", f"{percent:g}", "--max-trials", str(trials)]
    return [*_start(planned, addresses), *windows, *rule, "--profile-export-file", EXPORT_FILE]


def _start(planned: Planned, addresses: Addresses) -> list[str]:
    """Who sends what where, and how much at once."""
    load, model = planned.load, planned.target.model
    command = {
        "http-infer": [ANALYZER, "-m", model, "-u", addresses.http],
        "grpc-infer": [ANALYZER, "-m", model, "-u", addresses.grpc, "-i", "grpc"],
        "grpc-stream": [ANALYZER, "-m", model, "-u", addresses.grpc, "-i", "grpc", "--streaming"],
        # Its client of OpenAI's API posts a payload as it stands to any path.
        "http-generate": [
            *(ANALYZER, "-m", model, "-u", addresses.http, "--service-kind", "openai"),
            *("--endpoint", f"v2/models/{model}/generate"),
        ],
        # It reads streams over gRPC only (2.51).
        "http-generate-stream": [
            *SSE_LOAD,
            *("-u", addresses.http, "--endpoint", f"v2/models/{model}/generate_stream"),
        ],
    }[load.endpoint]
    command += ["--async", "--input-data", planned.input_file]
    if load.batch_size > 1:
        command += ["-b", str(load.batch_size)]
    if load.concurrency:
        return [*command, "--concurrency-range", str(load.concurrency)]
    command += ["--request-rate-range", f"{load.request_rate:g}"]
    return [*command, "--request-distribution", planned.distribution]
