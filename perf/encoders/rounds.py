"""Measures all services of one encoder in turns: every load on each of them, again and again.

All are up at once and one is used at a time, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tqdm import tqdm  # type: ignore[import-untyped]

from perf.encoders.targets import OURS
from perf.load.level_process import LevelArguments
from perf.load.measure import Level, Policy, Record, summarize
from perf.serving_costs.levels import cpu_seconds, endless_load

IDLE_S = 3.0
MAX_LEVEL_S = 60.0
REQUESTS_PER_CLIENT = 3
SHORT_CLIENTS, DOCUMENT_CLIENTS = 8, 2

RecordsOf = Callable[[LevelArguments, Callable[[int], object]], list[Record]]


@dataclass(frozen=True)
class Case:
    """A load at a number of clients."""

    load: str
    clients: int


@dataclass(frozen=True)
class EncoderEffort:
    """How much is measured; ``level_s`` is the least of a level."""

    rounds: int
    clients: tuple[int, ...]
    level_s: float

    def cases(self) -> list[Case]:
        """In the order of the table."""
        alone = [Case("texts-16", 1), Case("texts-128", 1)]
        return alone + [Case("texts", clients) for clients in self.clients]


@dataclass(frozen=True)
class EncoderLevel:
    """One level; ``documents_per_s`` were answered beside it, None where none were sent."""

    target: str
    load: str
    number: int  # of its round, from 1
    texts_per_s: float
    level: Level
    documents_per_s: float | None = None


@dataclass(frozen=True)
class Service:
    """One that is up: how it is measured, and whose processes it is."""

    records_of: RecordsOf
    pid: int


@dataclass(frozen=True)
class Measured:
    """All that was measured. ``idle_cores`` is what all take together without requests."""

    rounds: list[EncoderLevel]
    documents: list[EncoderLevel]
    idle_cores: float


@dataclass(frozen=True)
class Measuring:
    """Services by target, in the order of the first round."""

    services: Mapping[str, Service]
    effort: EncoderEffort
    seed: int
    bar: tqdm
    document_command: list[str] | None  # the load generator against ours, where that is measured

    def measure(self) -> Measured:
        """Warm up, then everything."""
        for target, service in self.services.items():
            self.bar.set_description_str(f"{target}: warming up")
            service.records_of(LevelArguments(8, self.seed, Policy(24, 2, 60), "texts"), self.show)
        idle_cores = self.idle_cores()
        rounds, documents = list[EncoderLevel](), list[EncoderLevel]()
        for number in range(1, self.effort.rounds + 1):
            rounds += self.round(number)
            documents += self.beside_documents(number)
        return Measured(rounds, documents, idle_cores)

    def round(self, number: int) -> Iterator[EncoderLevel]:
        """Every case on each service in turn; every other round in the opposite order."""
        targets = sorted(self.services, key=list(self.services).index, reverse=number % 2 == 0)
        for case in self.effort.cases():
            for target in targets:
                yield self.level(target, case, number)

    def beside_documents(self, number: int) -> Iterator[EncoderLevel]:
        """Short texts alone, and while long documents keep arriving."""
        if self.document_command is None:
            return
        case = Case("texts-16", SHORT_CLIENTS)
        yield self.level(OURS, case, number)
        documents = endless_load(self.document_command, self.seed, "documents", DOCUMENT_CLIENTS)
        with documents as count:
            level = self.level(OURS, case, number, count)
        yield level

    def level(
        self, target: str, case: Case, number: int, count: Callable[[], int] | None = None
    ) -> EncoderLevel:
        """Run one level; ``count`` says how many documents were answered so far."""
        self.bar.set_description_str(f"{target}, {case.load}, {case.clients} clients")
        policy = Policy(REQUESTS_PER_CLIENT * case.clients, self.effort.level_s, MAX_LEVEL_S)
        arguments = LevelArguments(case.clients, self.seed, policy, case.load)
        num_before, begin_s = count() if count else 0, time.perf_counter()
        records = self.services[target].records_of(arguments, self.show)
        elapsed_s = time.perf_counter() - begin_s
        self.bar.update()
        level = summarize(records, case.clients)
        return EncoderLevel(
            target=target,
            load=case.load,
            number=number,
            texts_per_s=level.num_requests / level.counted_s if level.counted_s else 0.0,
            level=level,
            documents_per_s=(count() - num_before) / elapsed_s if count else None,
        )

    def idle_cores(self) -> float:
        """Cores that all services keep busy together for a while without requests."""
        pids = {service.pid for service in self.services.values()}
        before = sum(map(cpu_seconds, pids))
        time.sleep(IDLE_S)
        return (sum(map(cpu_seconds, pids)) - before) / IDLE_S

    def show(self, num_answers: int) -> None:
        """Tell the progress bar."""
        self.bar.set_postfix_str(f"{num_answers} answers", refresh=False)
        self.bar.update(0)


def num_levels(effort: EncoderEffort, num_targets: int, *, documents: bool) -> int:
    """How many there will be."""
    return effort.rounds * (len(effort.cases()) * num_targets + 2 * documents)
