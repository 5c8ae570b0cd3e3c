"""Lists all measurements of a sweep in order: one load of one target each. Repeats are interleaved:
all first repeats come before the second ones, so that other work on the machine affects all loads
alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from perf.report.schema import Load
from perf.sweep.requests import RequestError, Requests, Target, Targets, requests_of
from perf.sweep.scenario import STREAMS, Measuring, Scenario
from perf.sweep.server import TritonView


@dataclass(frozen=True)
class Planned:
    """One measurement to make. ``input_file`` is relative to the run's folder, where all commands
    run.
    """

    load: Load
    repeat: int
    target: Target
    requests: Requests
    input_file: str
    measuring: Measuring
    distribution: str
    server: TritonView

    @property
    def streams(self) -> bool:
        return self.load.endpoint in STREAMS

    @property
    def counts_tokens(self) -> bool:
        """Whether answers report their number of tokens."""
        entry = self.requests.entries[0]
        return "return_num_output_tokens" in entry and self.load.batch_size == 1

    @property
    def callers(self) -> int:
        return self.load.concurrency or 1

    @property
    def label(self) -> str:
        """Describes the load for the progress bar."""
        load = self.load
        level = f"{load.concurrency} at once" if load.concurrency else f"{load.request_rate:g}/s"
        batch = f", batches of {load.batch_size}" if load.batch_size > 1 else ""
        lengths = f", prompts {load.prompt_tokens}" if load.prompt_tokens else ""
        lengths += f", answers {load.output_tokens}" if load.output_tokens else ""
        return f"{load.target} {load.endpoint}, {level}{batch}{lengths}"


def plan(server: TritonView, targets: Targets, repository: Path) -> list[Planned]:
    """Lists a sweep's measurements; mistakes are collected in ``targets``. Raises PerfError."""
    found: list[Planned] = []
    for number, scenario in enumerate(targets.sweep.scenarios):
        inputs: list[Planned] = []
        for target in targets.of(number, scenario):
            try:
                asked = requests_of(target, scenario.input, repository, targets.sweep.seed)
            except RequestError as error:
                targets.add(str(error), number, "input")
                continue
            inputs += [_planned(scenario, server, target, each) for each in asked]
        loads = list(product(inputs, scenario.batch_sizes, scenario.levels))
        found += [
            replace(one, repeat=repeat, load=replace(one.load, batch_size=size, **level))
            for repeat in range(scenario.measurement.repeats)
            for one, size, level in loads
        ]
    return found


def _planned(scenario: Scenario, server: TritonView, target: Target, requests: Requests) -> Planned:
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
        input_file=f"inputs/{name}.json",
        measuring=scenario.measurement,
        distribution=scenario.request_distribution,
        server=server,
    )


def input_files(planned: Iterable[Planned]) -> dict[str, str]:
    """The content of every input file."""
    return {one.input_file: one.requests.content(one.load.endpoint) for one in planned}
