"""States beside pages, against a cache simulated as lists of tokens: whatever a sequence's state
and pages hold when it computes is what that sequence says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.text_generation.memory.pages import StateCopy
from hf_triton.text_generation.memory.state_pages import StatePages
from hf_triton.text_generation.sequence.sequence import Sequence
from tests.model.engine.runners.test_pages import LOAD, PAGE_SIZE, Engine, come_and_go, sequence


@dataclass
class StateEngine(Engine):
    """A state is a list of the tokens that it has seen, by row."""

    states: dict[int, list[int]] = field(default_factory=dict)

    def new_pages(self) -> StatePages:
        max_kept = self.max_num_seqs if self.shares else 0
        pages = 1 + self.num_pages, PAGE_SIZE
        return StatePages(*pages, self.max_num_seqs, max_kept=max_kept, snapshots=True)

    def check(self) -> None:
        """A row has the state of one sequence that runs, or one that is kept."""
        super().check()
        rows = [*self.pages.kept, *(one.slot for one in self.scheduler.holding if one.slot)]
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(range(1, 1 + self.max_num_seqs))

    def copy(self, copies: list[StateCopy]) -> None:
        for copy in copies:
            self.states[copy.target] = list(self.states[copy.source])
            source, target = copy.page or (0, 0)
            for offset in range(PAGE_SIZE) if copy.page else ():
                self.cells[target, offset] = self.cells.get((source, offset), -1)

    def write(self, one: Sequence, start: int, end: int, writers: dict[int, Sequence]) -> None:
        super().write(one, start, end, writers)
        said = self.said(one)
        assert (self.states[one.slot] if start else []) == said[:start]
        self.states[one.slot] = said[:end]
        if one.snapshot is not None and start < one.snapshot.num_tokens <= end:
            assert one.snapshot.slot != one.slot
            self.states[one.snapshot.slot] = said[: one.snapshot.num_tokens]


# The longest sequence has 70 + 20 + 30 tokens: 8 pages.
SHAPES = st.builds(
    StateEngine,
    *(st.integers(8, 20), st.integers(1, 6), st.integers(6, 80), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(LOAD, SHAPES, st.data())
def test_each_sequence_says_what_its_state_and_pages_hold(
    load: list[tuple[list[int], int]], engine: StateEngine, data: st.DataObject
) -> None:
    come_and_go(load, engine, data)


def test_a_preempted_sequence_goes_on_from_its_state_where_it_is_still_there() -> None:
    engine = StateEngine(num_pages=9, max_num_seqs=2)
    old, young = sequence([1] * 40, 60), sequence([2] * 60, 40)
    engine.scheduler.add([old, young])
    while not young.num_preemptions:
        engine.step()
    num_computed = 60 + len(young.token_ids) - 1
    engine.scheduler.retire([old])
    step = engine.step()
    assert [(chunk.start, chunk.end) for chunk in step.prefills] == [
        (num_computed, num_computed + 1)
    ]


def test_a_chat_goes_on_within_a_page_and_a_kept_state_gives_its_pages_up() -> None:
    engine = StateEngine(num_pages=9, max_num_seqs=2)
    first = sequence(list(range(40)), 13)
    engine.run(first)
    assert engine.run(sequence([*range(40), *first.token_ids, 3])) == [52]
    assert engine.run(sequence([7] * 80, 60)) == [0]  # takes all pages
    assert engine.run(sequence([*range(40), *first.token_ids, 4])) == [0]


def test_a_snapshot_is_left_at_the_end_of_the_last_page_in_common() -> None:
    engine = StateEngine()
    system = list(range(41))
    assert engine.run(*(sequence([*system, 50 + tail]) for tail in range(2))) == [0, 0]
    assert engine.run(sequence([*system, 60, 61])) == [32]
