"""Rounds over servers that behave as real ones do: they answer, take cores idle, or die."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from perf.lab.baselines.fleet import Fleet, LeftOutError
from perf.lab.baselines.plan import Plan
from perf.lab.baselines.run import Rounds, warm_up
from perf.lab.baselines.servers.processes import PeerError
from perf.lab.baselines.servers.start import Service
from perf.lab.baselines.targets import Variant
from perf.load.levels import LevelArguments
from perf.load.measure import Record
from perf.load.process import LevelError
from perf.report.schema import Measurement

OURS, VLLM = Variant("ours", "float32"), Variant("vllm", "float32")
PLAN = Plan((OURS, VLLM), (1, 8), num_rounds=2, num_requests=4, max_level_s=60, seed=0)
PLENTY_GIB = 100.0


@dataclass
class Machine:
    """Where servers run that answer each request in half a second, streams in two pieces."""

    idle_cores: dict[Variant, float] = field(default_factory=dict)
    cannot_start: dict[Variant, str] = field(default_factory=dict)
    dies_at: int | None = None  # requests that VLLM answers before it does
    memory_gib: float = PLENTY_GIB
    events: list[str] = field(default_factory=list)
    _starting: Variant = OURS

    @contextmanager
    def start(self, variant: Variant, streaming: bool) -> Iterator[Service]:
        if variant in self.cannot_start:
            raise PeerError(self.cannot_start[variant])
        self.events.append(f"start {variant.name}{' streaming' * streaming}")
        self._starting = variant
        yield Service(self.answering(variant), os.getpid(), lambda: "its last line", self.pieces)
        self.events.append(f"stop {variant.name}")

    def answering(self, variant: Variant) -> Callable[..., list[Record]]:
        def records_of(
            arguments: LevelArguments, on_answer: Callable[[int], object]
        ) -> list[Record]:
            wanted = arguments.policy.min_requests
            if variant == VLLM and self.dies_at is not None and wanted > self.dies_at:
                raise LevelError("the load generator lost the server: gone")
            on_answer(wanted)
            return [
                Record(i, i / 2, i / 2 + 0.5, max_tokens=8, num_output_tokens=8)
                for i in range(wanted)
            ]

        return records_of

    def pieces(self, arguments: LevelArguments, _: Callable[[int], object]) -> list[Record]:
        count = range(arguments.policy.min_requests)
        return [
            Record(i, i / 2, i / 2 + 0.5, 8, 8, chunk_s=(i / 2 + 0.1, i / 2 + 0.5)) for i in count
        ]

    def fleet(self) -> Fleet:
        return Fleet(
            self.start,
            lambda service, streams: warm_up(service, 0, streams=streams),
            lambda _: self.idle_cores.get(self._starting, 0.0),
            lambda: self.memory_gib,
        )


def measured(machine: Machine, plan: Plan = PLAN) -> tuple[list[Measurement], Rounds]:
    kept: list[Measurement] = []
    with tqdm(disable=True) as bar:
        rounds = Rounds(
            plan, machine.fleet(), kept.append, "a command", bar, lambda _, rate: rate / 100
        )
        rounds.measure(list(plan.steps()))
        rounds.fleet.close()
    return kept, rounds


def test_each_level_is_kept_with_its_figures() -> None:
    kept, rounds = measured(Machine())
    assert len(kept) == 8
    first = kept[0]
    assert (first.load.target, first.load.concurrency, first.repeat) == ("ours", 1, 0)
    assert first.output_tokens_per_s == pytest.approx(16.0)
    assert first.latency is not None
    assert first.latency.p50_ms == pytest.approx(500.0)
    assert first.num_requests >= 4
    assert first.stable
    assert first.roofline_share == pytest.approx(0.16)
    assert set(first.machine) >= {"server_cpu_cores", "other_cpu_cores", "memory_gib"}
    assert rounds.notes == []


def test_one_that_takes_cores_without_requests_is_up_only_while_it_is_measured() -> None:
    machine = Machine(idle_cores={VLLM: 1.0})
    kept, rounds = measured(machine)
    assert len(kept) == 8
    assert machine.events.count("start vllm") == machine.events.count("stop vllm") == 4
    assert machine.events.count("start ours") == 1
    assert rounds.fleet.restless == {VLLM: 1.0}


def test_where_memory_does_not_hold_all_the_others_are_stopped_first() -> None:
    machine = Machine()
    fleet = machine.fleet()
    with fleet.using(OURS):
        pass
    machine.memory_gib = 3.0
    with pytest.raises(LeftOutError, match=r"needs 6\.0 GiB of memory, 3\.0 GiB are available"):
        fleet._start(VLLM, streaming=False)
    assert machine.events == ["start ours", "stop ours"]
    assert fleet.crowded


def test_one_that_does_not_come_up_is_left_out_and_the_others_go_on() -> None:
    machine = Machine(cannot_start={VLLM: "vllm did not start\nTraceback\nno device"})
    kept, rounds = measured(machine)
    assert {each.load.target for each in kept} == {"ours"}
    assert len(kept) == 4
    assert rounds.notes == [
        "vLLM, float32 is left out from round 1, 1 clients on: vllm did not start ... no device"
    ]


def test_one_that_dies_keeps_what_it_had_and_the_others_go_on() -> None:
    kept, rounds = measured(Machine(dies_at=10))  # 4 + 2 at 1 client, 4 + 16 at 8
    assert [each.load.concurrency for each in kept if each.load.target == "vllm"] == [1]
    assert len([each for each in kept if each.load.target == "ours"]) == 4
    [note] = rounds.notes
    assert note.startswith("vLLM, float32 is left out from round 1, 8 clients on: the load gen")
    assert note.endswith("its last line")


def test_streams_are_measured_on_one_that_streams() -> None:
    machine = Machine()
    plan = Plan((OURS,), (1,), num_rounds=1, num_requests=4, max_level_s=60, seed=0, streams=True)
    kept, _ = measured(machine, plan)
    assert machine.events[:2] == ["start ours", "start ours streaming"]
    waits = kept[1]
    assert waits.load.endpoint == "http-generate-stream"
    assert waits.time_to_first_token is not None
    assert waits.time_to_first_token.p50_ms == pytest.approx(100.0)
    assert waits.inter_token_latency is not None
    assert waits.inter_token_latency.p99_ms == pytest.approx(400.0)
    assert waits.server == {"tokens_per_chunk": 4.0}
