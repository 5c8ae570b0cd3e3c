"""The scheduler against a cache simulated as lists: each slot holds the tokens written to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_generation.sampling_params import SamplingParams
from text_generation.scheduler import Move, Scheduler, Step
from text_generation.sequence import Sequence


def sequence(num_prompt_tokens: int, max_tokens: int = 1) -> Sequence:
    return Sequence(
        list(range(num_prompt_tokens)),
        SamplingParams(max_tokens=max_tokens),
        on_finish=lambda _: None,
        detokenizer=None,  # type: ignore[arg-type]
    )


@dataclass
class Simulation:
    """Plays steps as a runner would. A cell is (sequence, position), so mixing rows shows."""

    scheduler: Scheduler
    cells: list[list[tuple[int, int]]] = field(default_factory=list)
    num_computed: dict[int, int] = field(default_factory=dict)
    finished: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = [[] for _ in range(self.scheduler.max_num_seqs)]

    def step(self) -> Step:
        step = self.scheduler.schedule()
        assert step.num_tokens > 0
        assert step.num_tokens <= max(self.scheduler.max_num_batched_tokens, len(step.decodes))
        assert [s.slot for s in step.decodes] == list(range(len(step.decodes)))
        for one in step.decodes:
            self.compute(one, one.num_computed_tokens - 1)
            assert one.num_computed_tokens == one.num_prompt_tokens + len(one.token_ids)
        for chunk in step.prefills:
            assert chunk.start < chunk.end
            for position in range(chunk.start, chunk.end):
                self.compute(chunk.sequence, position)
        for one in step.sampled:
            one.append(0, frozenset())
        self.retire(step)
        return step

    def compute(self, one: Sequence, position: int) -> None:
        """Writes one token: never twice, never out of order, never over another sequence's row."""
        row = self.cells[one.slot]
        assert position == self.num_computed.get(id(one), 0)
        self.num_computed[id(one)] = position + 1
        del row[position:]
        assert row == [(id(one), before) for before in range(position)]
        row.append((id(one), position))

    def retire(self, step: Step) -> None:
        done = [one for one in step.sampled if one.finish_reason]
        for move in self.scheduler.retire(done):
            assert move.source != move.target
            self.cells[move.target] = self.cells[move.source][: move.num_tokens]
        self.finished += done
        assert [s.slot for s in self.scheduler.running] == list(range(len(self.scheduler.running)))


LOAD = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=14)


@settings(max_examples=250, deadline=None)
@given(LOAD, st.integers(1, 5), st.integers(1, 12), st.data())
def test_every_sequence_finishes_with_each_token_computed_once_in_its_own_compact_slot(
    load: list[tuple[int, int]], max_num_seqs: int, budget: int, data: st.DataObject
) -> None:
    simulation = Simulation(Scheduler(max_num_seqs, budget))
    scheduler = simulation.scheduler
    arriving = [sequence(prompt, output) for prompt, output in load]
    everything = list(arriving)
    while arriving or scheduler.has_work:
        count = data.draw(st.integers(0, 3)) if scheduler.has_work else 1
        scheduler.add(arriving[:count])
        del arriving[:count]
        simulation.step()
    assert set(map(id, simulation.finished)) == set(map(id, everything))
    assert len(simulation.finished) == len(everything)
    for one in everything:
        assert len(one.token_ids) == one.params.max_tokens
        # The last token is answered, not computed.
        expected = one.num_prompt_tokens + one.params.max_tokens - 1
        assert simulation.num_computed[id(one)] == expected


@settings(max_examples=100, deadline=None)
@given(LOAD, st.integers(1, 5), st.integers(1, 12), st.integers(0, 30))
def test_drain_gives_back_each_unfinished_sequence_once_and_leaves_nothing(
    load: list[tuple[int, int]], max_num_seqs: int, budget: int, num_steps: int
) -> None:
    simulation = Simulation(Scheduler(max_num_seqs, budget))
    everything = [sequence(prompt, output) for prompt, output in load]
    simulation.scheduler.add(everything)
    for _ in range(num_steps):
        if simulation.scheduler.has_work:
            simulation.step()
    drained = simulation.scheduler.drain()
    assert not simulation.scheduler.has_work
    ids = [id(one) for one in (*drained, *simulation.finished)]
    assert sorted(ids) == sorted(map(id, everything))


def test_prompts_are_taken_in_order_of_arrival() -> None:
    scheduler = Scheduler(max_num_seqs=8, max_num_batched_tokens=10)
    first, second, third = sequence(4), sequence(9), sequence(1)
    scheduler.add([first, second])
    scheduler.add([third])
    step = scheduler.schedule()
    assert [(c.sequence, c.start, c.end) for c in step.prefills] == [(first, 0, 4), (second, 0, 6)]
    assert step.sampled == [first]
    step = scheduler.schedule()
    assert step.decodes == [first]
    assert [(c.sequence, c.start, c.end) for c in step.prefills] == [(second, 6, 9), (third, 0, 1)]
    assert step.sampled == [first, second, third]


def test_running_sequences_decode_even_where_they_pass_the_budget() -> None:
    scheduler = Scheduler(max_num_seqs=4, max_num_batched_tokens=2)
    running = [sequence(1, 9) for _ in range(3)]
    scheduler.add(running)
    while len(scheduler.running) < 2:
        scheduler.schedule()
    step = scheduler.schedule()
    assert len(step.decodes) == 2
    assert step.prefills == []  # and no prompt is admitted beyond it


def test_no_more_than_max_num_seqs_hold_a_slot() -> None:
    scheduler = Scheduler(max_num_seqs=2, max_num_batched_tokens=100)
    scheduler.add([sequence(3, 5) for _ in range(4)])
    assert len(scheduler.schedule().prefills) == 2
    assert scheduler.schedule().prefills == []
    assert len(scheduler.waiting) == 2


def running_scheduler(*num_prompt_tokens: int) -> Scheduler:
    scheduler = Scheduler(max_num_seqs=8, max_num_batched_tokens=100)
    scheduler.add([sequence(count, 9) for count in num_prompt_tokens])
    scheduler.schedule()
    return scheduler


def test_the_last_row_moves_into_the_hole() -> None:
    scheduler = running_scheduler(2, 3, 4)
    first, second, third = scheduler.running
    assert scheduler.retire([first]) == [Move(source=2, target=0, num_tokens=4)]
    assert scheduler.running == [third, second]
    assert (third.slot, second.slot) == (0, 1)


def test_nothing_moves_when_the_last_row_finishes() -> None:
    scheduler = running_scheduler(2, 3)
    assert scheduler.retire([scheduler.running[1]]) == []
    assert [one.slot for one in scheduler.running] == [0]


def test_a_partly_prefilled_prompt_moves_down_behind_the_running_ones() -> None:
    scheduler = running_scheduler(2, 3)
    partial = sequence(200)
    scheduler.add([partial])
    scheduler.schedule()
    assert (partial.slot, partial.num_computed_tokens) == (2, 98)
    first, second = scheduler.running
    moves = scheduler.retire([first])
    assert moves == [Move(1, 0, second.num_computed_tokens), Move(2, 1, 98)]
    assert partial.slot == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_all_may_finish_at_once_in_any_order(order: tuple[int, ...]) -> None:
    scheduler = running_scheduler(2, 3, 4)
    rows = list(scheduler.running)
    scheduler.retire([rows[number] for number in order])
    assert scheduler.running == []
    assert not scheduler.has_work
