"""Lists the measurements of a sweep: all first repeats before the second ones, so that other work
on the machine affects all loads alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from perf.report.schema import Load
from perf.sweep.requests import RequestError, Requests, Target, Targets, requests_of
from perf.sweep.scenario import STREAMS, Measuring
from perf.sweep.server import TritonView


@dataclass(frozen=True)
class Planned:
    load: Load
    repeat: int
    target: Target
    requests: Requests
    measuring: Measuring
    distribution: str
    server: TritonView

    @property
    def input_file(self) -> str:
        """Its path in the run's folder, where all commands run."""
        load = self.load
        parts = (
            load.input_name,
            load.target,
            load.endpoint,
            load.prompt_tokens,
            load.output_tokens,
        )
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(part for part in parts if part))
        return f"inputs/{name}.json"

    @property
    def streams(self) -> bool:
        return self.load.endpoint in STREAMS

    @property
    def counts_tokens(self) -> bool:
        entry = self.requests.entries[0]
        return "return_num_output_tokens" in entry and self.load.batch_size == 1

    @property
    def callers(self) -> int:
        return self.load.concurrency or 1

    @property
    def label(self) -> str:
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
        inputs: list[tuple[Target, Requests]] = []
        for target in targets.of(number, scenario):
            try:
                asked = requests_of(target, scenario.input, repository, targets.sweep.seed)
            except RequestError as error:
                targets.add(str(error), number, "input")
                continue
            inputs += [(target, each) for each in asked]
        distribution = scenario.request_distribution
        for repeat in range(scenario.measurement.repeats):
            for (target, requests), size, level in product(
                inputs, scenario.batch_sizes, scenario.levels
            ):
                load = Load(
                    target=target.name,
                    endpoint=target.endpoint,
                    batch_size=size,
                    input_name=scenario.name,
                    prompt_tokens=requests.prompt,
                    output_tokens=requests.output,
                    settings={"distribution": "poisson"} if distribution != "constant" else {},
                    **level,
                )
                measuring = scenario.measurement
                planned = Planned(load, repeat, target, requests, measuring, distribution, server)
                found.append(planned)
    return found


def input_files(planned: Iterable[Planned]) -> dict[str, str]:
    return {one.input_file: one.requests.content(one.load.endpoint) for one in planned}
