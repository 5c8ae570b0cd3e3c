"""Serves the three targets one after the other and measures each at every number of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped]

from perf.baselines.report import BASELINE, IN_PROCESS, THROUGH_TRITON
from perf.baselines.repositories import lay_out_baseline, lay_out_in_flight
from perf.load.level import http_command, in_process_command, measure
from perf.load.level_process import LevelArguments
from perf.load.measure import Level, Policy
from perf.load.targets import IN_FLIGHT, TUTORIAL, Target
from perf.serving import serving

BAR_FORMAT = "{n}/{total} levels |{bar:20}| {elapsed} {desc}{postfix}"


@dataclass(frozen=True)
class Effort:
    """How much is sent: least requests (and per client), least and most seconds of a level."""

    clients: tuple[int, ...]
    min_requests: int
    min_requests_per_client: int
    min_s: float
    max_s: float

    def policy(self, clients: int) -> Policy:
        """What a level of that many clients has to reach."""
        per_client = self.min_requests_per_client * clients
        return Policy(max(self.min_requests, per_client), self.min_s, self.max_s)


@dataclass(frozen=True)
class Sweep:
    """The levels to measure; ``folder`` is temporary and holds the model."""

    folder: Path
    effort: Effort
    seed: int
    bar: tqdm

    @property
    def clients(self) -> tuple[int, ...]:
        return self.effort.clients

    def baseline(self) -> list[Level]:
        """The tutorial's model on tritonserver."""
        return self.served(BASELINE, TUTORIAL, lay_out_baseline(self.folder))

    def through_triton(self) -> list[Level]:
        """The in-flight engine on tritonserver."""
        repository = lay_out_in_flight(self.folder)
        return self.served(THROUGH_TRITON, IN_FLIGHT, repository)

    def in_process(self) -> list[Level]:
        """The same engine in the load's own process, with the same settings."""
        repository = lay_out_in_flight(self.folder)
        command = in_process_command(repository / IN_FLIGHT.name)
        return self.levels(IN_PROCESS, command)

    def served(self, label: str, target: Target, repository: Path) -> list[Level]:
        """Start a server on ``repository``, warm it up, measure, stop it."""
        self.bar.set_description_str(f"{label}: starting")
        with serving(repository, target.name) as server:
            command = http_command(target, server.listen.http_port)
            measure(command, LevelArguments.warm_up(self.seed), self.show)
            return self.levels(label, command)

    def levels(self, label: str, command: Sequence[str]) -> list[Level]:
        """One level for each number of clients, by a process of ``command`` each."""
        levels = []
        for clients in self.clients:
            self.bar.set_description_str(f"{label}, {clients} clients")
            arguments = LevelArguments(clients, self.seed, self.effort.policy(clients))
            levels.append(measure(command, arguments, self.show))
            self.bar.update()
        return levels

    def show(self, num_answers: int) -> None:
        """Tell the progress bar."""
        self.bar.set_postfix_str(f"{num_answers} answers", refresh=False)
        self.bar.update(0)


TARGETS: Mapping[str, tuple[str, Callable[[Sweep], list[Level]]]] = {
    "baseline": (BASELINE, Sweep.baseline),
    "triton": (THROUGH_TRITON, Sweep.through_triton),
    "in-process": (IN_PROCESS, Sweep.in_process),
}
"""Name on the command line -> label in the report, and what measures it."""


def run(folder: Path, effort: Effort, targets: Sequence[str], seed: int) -> dict[str, list[Level]]:
    """Measure ``targets`` in their order; return the levels by label."""
    total = len(effort.clients) * len(targets)
    with tqdm(total=total, bar_format=BAR_FORMAT, mininterval=0.5, miniters=0) as bar:
        sweep = Sweep(folder, effort, seed, bar)
        return {TARGETS[name][0]: TARGETS[name][1](sweep) for name in targets}
