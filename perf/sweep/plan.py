"""Everything that a sweep will measure, in the order in which it will: one load of one target each,
and the command that sends it.

Loads of one scenario go in turns: all of the first repeat come before the second, so that what else
the machine does in the meantime meets all of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from perf.report.schema import Load
from perf.sweep.requests import RequestError, Requests, requests_of
from perf.sweep.scenario import SEVERAL_TIMES, STREAMS, Addresses, Measuring, Scenario
from perf.sweep.targets import Target, Targets

EXPORT_FILE = "profile_export.json"
INPUTS_FOLDER = "inputs"
ANALYZER, SSE_LOAD = "perf_analyzer", ("python", "-m", "perf.sweep.sse_load")
_STABILITY, _TRIALS = "--stability-percentage", "--max-trials"
_FEW_REQUESTS = 4
_ALL_STABLE = "999999"  # per cent: what differs by less counts as stable


@dataclass(frozen=True)
class Planned:
    """One measurement to be. ``input_file`` is the path from the run's folder, where all its
    commands run.
    """

    load: Load
    repeat: int
    target: Target
    requests: Requests
    input_file: str
    measuring: Measuring
    distribution: str
    given: Addresses | None  # the scenario's own server

    @property
    def key(self) -> str:
        """Equal for the same load and repeat."""
        return key_of(self.load, self.repeat)

    @property
    def streams(self) -> bool:
        return self.load.endpoint in STREAMS

    @property
    def counts_tokens(self) -> bool:
        """Whether answers say how many tokens they are."""
        entry = self.requests.entries[0]
        return "return_num_output_tokens" in entry and self.load.batch_size == 1

    @property
    def callers(self) -> int:
        return self.load.concurrency or 1

    @property
    def label(self) -> str:
        """For people: what is being measured."""
        load = self.load
        level = f"{load.concurrency} at once" if load.concurrency else f"{load.request_rate:g}/s"
        batch = f", batches of {load.batch_size}" if load.batch_size > 1 else ""
        lengths = f", prompts {load.prompt_tokens}" if load.prompt_tokens else ""
        lengths += f", answers {load.output_tokens}" if load.output_tokens else ""
        return f"{load.target} {load.endpoint}, {level}{batch}{lengths}"


def key_of(load: Load, repeat: int) -> str:
    """As Planned's."""
    return json.dumps([asdict(load), repeat], sort_keys=True)


def plan(scenario: Scenario, targets: Targets, repository: Path, seed: int) -> list[Planned]:
    """What one scenario asks for; mistakes are noted in ``targets``. Raises PerfError."""
    found = []
    for target in targets.of(scenario):
        try:
            requests = requests_of(target, scenario.inputs, repository, seed)
        except RequestError as error:
            targets.add(scenario.places.get("input"), scenario, str(error))
            continue
        found += [_planned(scenario, target, one) for one in requests]
    levels = list(product(found, scenario.batch_sizes, _levels(scenario)))
    return [
        replace(one, repeat=repeat, load=replace(one.load, batch_size=size, **level))
        for repeat in range(scenario.measurement.repeats)
        for one, size, level in levels
    ]


def _levels(scenario: Scenario) -> Sequence[Mapping[str, Any]]:
    closed = [{"concurrency": int(one)} for one in scenario.concurrency]
    return [*closed, *({"request_rate": float(one)} for one in scenario.request_rate)]


def _planned(scenario: Scenario, target: Target, requests: Requests) -> Planned:
    load = Load(
        target=target.name,
        endpoint=target.endpoint,
        input_name=scenario.name,
        prompt_tokens=requests.prompt,
        output_tokens=requests.output,
        settings={"distribution": "poisson"} if scenario.request_distribution != "constant" else {},
    )
    parts = (scenario.name, target.name, target.endpoint, requests.prompt, requests.output)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(part for part in parts if part))
    return Planned(
        load=load,
        repeat=0,
        target=target,
        requests=requests,
        input_file=f"{INPUTS_FOLDER}/{name}.json",
        measuring=scenario.measurement,
        distribution=scenario.request_distribution,
        given=scenario.url,
    )


def input_files(planned: Iterable[Planned]) -> dict[str, str]:
    """The content of every input file that is needed."""
    return {one.input_file: one.requests.content(one.load.endpoint) for one in planned}


def warm_up_command(planned: Planned, addresses: Addresses) -> list[str]:
    """A few requests whose figures are thrown away; perf_analyzer wants a second's at least."""
    per_second = math.ceil(planned.load.request_rate or 0)
    count = max(planned.measuring.warm_up_requests, planned.callers, per_second)
    return [*_start(planned, addresses), "--request-count", str(count)]


def measuring_command(planned: Planned, addresses: Addresses) -> list[str]:
    """The measurement itself."""
    measuring = planned.measuring
    if measuring.window_requests is None:
        windows = ["--measurement-interval", str(round(measuring.window_s * 1000))]
    else:
        windows = _counting(measuring.window_requests)
    percent = f"{measuring.stability_percent:g}"
    return _measuring(planned, addresses, windows, percent, measuring.max_trials)


def unstable_command(planned: Planned, addresses: Addresses) -> list[str]:
    """Three such windows, however they differ."""
    command = measuring_command(planned, addresses)
    percent, trials = command.index(_STABILITY) + 1, command.index(_TRIALS) + 1
    command[percent], command[trials] = _ALL_STABLE, str(SEVERAL_TIMES)
    return command


def counting_command(planned: Planned, addresses: Addresses) -> list[str]:
    """Three windows of a few requests each, for those that take longer than a window."""
    windows = _counting(max(_FEW_REQUESTS, planned.callers))
    return _measuring(planned, addresses, windows, _ALL_STABLE, SEVERAL_TIMES)


def _counting(num_requests: int) -> list[str]:
    mode = ["--measurement-mode", "count_windows"]
    return [*mode, "--measurement-request-count", str(num_requests)]


def _measuring(
    planned: Planned, addresses: Addresses, windows: Sequence[str], percent: str, trials: int
) -> list[str]:
    rule = [_STABILITY, percent, _TRIALS, str(trials)]
    export = ["--profile-export-file", EXPORT_FILE]
    return [*_start(planned, addresses), *windows, *rule, *export]


def is_forced(command: Sequence[str]) -> bool:
    """Whether it measures three windows however they differ."""
    return _ALL_STABLE in command


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
