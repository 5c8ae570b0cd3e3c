"""Measures what is missing of a run, level after level, and keeps each as soon as it is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tqdm import tqdm  # type: ignore[import-untyped]

from perf.lab.baselines.fleet import Fleet, LeftOutError
from perf.lab.baselines.plan import Plan, Step
from perf.lab.baselines.servers.start import Service
from perf.lab.baselines.targets import OURS_ON_TRITON
from perf.load.figures import between_chunks, measurement_of
from perf.load.levels import LevelArguments
from perf.load.measure import Record, client_cores, counted
from perf.machine import num_cores
from perf.report.head import now
from perf.report.schema import Measurement
from perf.usage import cpu_seconds, machine_cpu_seconds, memory_gib

BAR_FORMAT = "{n}/{total} levels |{bar:20}| {elapsed} {desc}{postfix}"


@dataclass
class Rounds:
    """``keep`` is given each measurement; ``notes`` say what a reader has to know of the run."""

    plan: Plan
    fleet: Fleet
    keep: Callable[[Measurement], object]
    command: str
    bar: tqdm
    share_of: Callable[[Step, float], float]  # of what the machine allows, from tokens/s
    notes: list[str] = field(default_factory=list)

    def measure(self, steps: Sequence[Step]) -> None:
        """Every step whose target can be had."""
        for step in steps:
            if step.variant not in self.fleet.left_out:
                try:
                    found = self._level(step)
                except LeftOutError as error:
                    self._leave_out(step, str(error))
                else:
                    self.keep(found)
            self.bar.update()

    def _level(self, step: Step) -> Measurement:
        streaming = step.streams and step.variant.name in OURS_ON_TRITON
        with self.fleet.using(step.variant, streaming=streaming) as service:
            self._tell(f"{step.variant}, {step.clients} clients")
            started, pid = now(), service.pid
            before_s = (time.perf_counter(), cpu_seconds(pid), machine_cpu_seconds())
            records = service.run(step.streams)(self.plan.arguments(step), self._show)
            after_s = (time.perf_counter(), cpu_seconds(pid), machine_cpu_seconds())
            elapsed_s, server_s, machine_s = (a - b for a, b in zip(after_s, before_s, strict=True))
            clients = client_cores(records, step.clients)
            machine = {
                "cpu_share": machine_s / elapsed_s / num_cores(),
                "server_cpu_cores": server_s / elapsed_s,
                "client_cpu_cores": clients,
                "other_cpu_cores": max(0.0, (machine_s - server_s) / elapsed_s - clients),
                "memory_gib": memory_gib(pid),
            }
        return self._measurement(step, records, started, machine)

    def _measurement(
        self, step: Step, records: Sequence[Record], started: str, machine: Mapping[str, float]
    ) -> Measurement:
        """The figures of a level; stable where as many requests were counted as were wanted."""
        inside, _ = counted(records, step.clients)
        good = [record for record in inside if record.problem is None]
        num_chunks = sum(len(record.chunk_s) for record in good)
        tokens = sum(record.num_output_tokens for record in good)
        found = measurement_of(
            records, step.load, step.round, started, self.command, between_chunks
        )
        useful = found.output_tokens_per_s or 0.0
        return replace(
            found,
            stable=len(good) >= self.plan.num_requests,
            output_tokens_per_s=useful,
            roofline_share=self.share_of(step, useful),
            server={"tokens_per_chunk": tokens / num_chunks} if num_chunks else {},
            machine=machine,
        )

    def _leave_out(self, step: Step, why: str) -> None:
        when = f"round {step.round + 1}, {step.clients} clients"
        first, *rest = why.splitlines() or ["no reason given"]
        short = " ... ".join([first, *rest[-1:]])
        self.notes.append(f"{step.variant.label} is left out from {when} on: {short}")
        tqdm.write("\n  ".join([f"{step.variant} is left out: {first}", *rest]), file=sys.stderr)

    def _tell(self, text: str) -> None:
        self.bar.set_postfix_str("", refresh=False)
        self.bar.set_description_str(text, refresh=sys.stderr.isatty())

    def _show(self, num_answers: int) -> None:
        self.bar.set_postfix_str(f"{num_answers} answers", refresh=False)
        self.bar.update(0)


def warm_up(service: Service, seed: int, *, streams: bool) -> None:
    """A few requests, other ones than are measured; their figures are thrown away."""
    service.run(streams)(LevelArguments.warm_up(seed), lambda _: None)
