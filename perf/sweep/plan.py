"""Lists the measurements of a sweep: all first repeats before the second ones, so that other work
on the machine affects all loads alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from generator.errors import PerfError
from perf.report.schema import Load
from perf.sweep.requests import (
    ConfigOf,
    RequestError,
    Requests,
    Target,
    requests_of,
    targets_of,
)
from perf.sweep.scenario import STREAMS, Scenario, Sweep
from perf.sweep.server import TritonView


@dataclass(frozen=True)
class Planned:
    load: Load
    repeat: int
    target: Target
    requests: Requests
    scenario: Scenario
    server: TritonView

    @property
    def input_file(self) -> str:
        """The path of the load's input file in the run's folder, where all commands run."""
        of, texts = self.load, (self.load.prompt_tokens, self.load.output_tokens)
        parts = (of.input_name, of.target, of.endpoint, *texts)
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


def plan(sweep: Sweep, server: TritonView, repository: Path, config_of: ConfigOf) -> list[Planned]:
    """Lists a sweep's measurements. Raises PerfError with every mistake that only the models'
    configurations show.
    """
    found, mistakes, known = list[Planned](), list[str](), names_in(repository)
    for scenario in sweep.scenarios:
        inputs: list[tuple[Target, Requests]] = []
        targets, wrong = targets_of(scenario, config_of, known)
        for target in targets:
            try:
                asked = requests_of(target, scenario.input, repository, sweep.seed)
            except RequestError as error:
                wrong.append(f"input: {error}")
                continue
            inputs += [(target, each) for each in asked]
        mistakes += [f"scenario '{scenario.name}': {each}" for each in dict.fromkeys(wrong)]
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
                    **level,
                )
                found.append(Planned(load, repeat, target, requests, scenario, server))
    if mistakes:
        raise PerfError("\n".join(mistakes))
    return found


def names_in(repository: Path) -> list[str]:
    return sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))


def input_files(planned: Iterable[Planned]) -> dict[str, str]:
    return {one.input_file: one.requests.content(one.load.endpoint) for one in planned}
