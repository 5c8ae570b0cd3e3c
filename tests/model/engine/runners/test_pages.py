"""Pages that sequences take as they grow and share by reference, against a cache simulated as lists
of tokens: whatever its pages hold when a sequence computes is what that sequence says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import and_, eq
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.trial import dummy_sequence
from hf_triton.text_generation.memory.pages import PagedSize, Pages, StateCopy
from hf_triton.text_generation.memory.state_pages import StatePages
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence

PAGE_SIZE = 16


def size(num_pages: int, page_size: int = PAGE_SIZE, max_num_seqs: int = 4) -> PagedSize:
    return PagedSize(num_pages, num_pages * page_size, max_num_seqs, 0, page_size)


def sequence(prompt: list[int], max_tokens: int = 1) -> Sequence:
    return dummy_sequence(prompt, SamplingParams(max_tokens=max_tokens))


def check_held(scheduler: Scheduler, pages: Any) -> None:
    """As many pages are in use as sequences have, each of them one that there is."""
    held = {page for one in scheduler.holding for page in one.pages}
    assert held <= set(range(1, pages.num_pages))
    assert pages.num_used == len(held)


@dataclass
class Engine:
    """A scheduler over pages, and what they hold. Cell = token id; pages have PAGE_SIZE tokens."""

    num_pages: int = 40  # beside page 0
    max_num_seqs: int = 4
    budget: int = 64
    shares: bool = True
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    num_computed: Counter[Sequence] = field(default_factory=Counter)  # tokens of each

    def __post_init__(self) -> None:
        self.pages = self.new_pages()
        self.scheduler = Scheduler(self.max_num_seqs, self.budget, self.pages)

    def new_pages(self) -> Any:
        return Pages(size(1 + self.num_pages), shares=self.shares)

    def check(self) -> None:
        check_held(self.scheduler, self.pages)

    def copy(self, copies: list[StateCopy]) -> None:
        for copy in copies:
            assert copy.page is not None
            source, target = copy.page
            for offset in range(PAGE_SIZE):
                self.cells[target, offset] = self.cells.get((source, offset), -1)

    def step(self) -> Step:
        """Plays one, with the sum of what a sequence says for a token, so that histories differ."""
        step = self.scheduler.schedule()
        self.copy(step.copies)
        assert step.num_tokens <= max(self.budget, len(step.decodes))
        decodes = [(s, s.num_computed_tokens - 1, s.num_computed_tokens) for s in step.decodes]
        computed = decodes + [(chunk.sequence, chunk.start, chunk.end) for chunk in step.prefills]
        writers: dict[int, Sequence] = {}
        for one, start, end in computed:  # all are written before any is read
            self.write(one, start, end, writers)
        for one, _, end in computed:
            self.read(one, end)
        for one in step.sampled:
            one.append(sum(self.said(one)[: one.num_computed_tokens]) % 3, frozenset())
        self.scheduler.retire([one for one in step.sampled if one.finish_reason])
        self.check()
        return step

    def said(self, one: Sequence) -> list[int]:
        return one.prompt_token_ids + one.token_ids

    def write(self, one: Sequence, start: int, end: int, writers: dict[int, Sequence]) -> None:
        assert start < end
        self.num_computed[one] += end - start
        for position, token in enumerate(self.said(one)[start:end], start):
            page = one.pages[position // PAGE_SIZE]
            assert writers.setdefault(page, one) is one
            self.cells[page, position % PAGE_SIZE] = token

    def read(self, one: Sequence, end: int) -> None:
        cells = [(one.pages[at // PAGE_SIZE], at % PAGE_SIZE) for at in range(end)]
        assert [self.cells[cell] for cell in cells] == self.said(one)[:end]

    def run(self, *sequences: Sequence) -> list[int]:
        """Computes them to their end -> how many tokens of each were there already."""
        self.scheduler.add(sequences)
        while self.scheduler.has_work:
            self.step()
        return [one.num_reused_tokens for one in sequences]


STEMS = [[7] * 40, [7] * 20 + [8] * 30, [5] * 16, list(range(20, 90))]
PROMPTS = st.builds(
    lambda stem, num, tail: stem[:num] + tail,
    st.sampled_from(STEMS),
    st.integers(1, 70),
    st.lists(st.integers(1, 3), max_size=20),
)
LOAD = st.lists(st.tuples(PROMPTS, st.integers(1, 30)), min_size=1, max_size=9)
# The longest sequence has 70 + 20 + 30 tokens: 8 pages.
SHAPES = st.builds(Engine, st.integers(8, 20), st.integers(1, 6), st.integers(6, 80), st.booleans())


@settings(max_examples=200, deadline=None)
@given(LOAD, SHAPES, st.data())
def test_each_sequence_says_what_its_pages_hold_whoever_comes_goes_and_is_preempted(
    load: list[tuple[list[int], int]], engine: Engine, data: st.DataObject
) -> None:
    come_and_go(load, engine, data)


def come_and_go(load: list[tuple[list[int], int]], engine: Engine, data: st.DataObject) -> None:
    """Sequences come, are computed, cancelled, preempted and failed, until all have ended."""
    scheduler = engine.scheduler
    arriving = [sequence(prompt, output) for prompt, output in load]
    everything, left = list(arriving), []
    while arriving or scheduler.has_work:
        count = data.draw(st.integers(0, 3)) if scheduler.has_work else 1
        scheduler.add(arriving[:count])
        del arriving[:count]
        engine.step()
        what = data.draw(st.sampled_from(["go on"] * 8 + ["cancel", "fail"]))
        if what == "cancel":
            there = [one for one in everything if one not in arriving and not one.finish_reason]
            leaving = [one for one in there if one not in left][: data.draw(st.integers(0, 2))]
            left += leaving
            scheduler.retire(leaving)
        elif what == "fail":
            left += scheduler.drain_running()
            engine.cells.clear()
            assert engine.pages.num_used == engine.pages.num_kept == 0
        engine.check()
    for one in everything:
        assert not one.pages
        if one not in left:
            assert len(one.token_ids) == one.params.max_tokens
    assert engine.pages.num_used == 0
    assert engine.shares or not engine.pages.num_kept


def test_the_youngest_is_preempted_and_computed_again_once_there_is_room() -> None:
    engine = Engine(num_pages=5)
    old, young = sequence([1] * 15, 40), sequence([2] * 15, 40)
    engine.scheduler.add([old, young])
    while not engine.scheduler.num_preempted:
        engine.step()
    num_said = len(young.token_ids)
    assert (young.num_preemptions, old.num_preemptions) == (1, 0)
    assert engine.scheduler.running == [old]
    while not old.finish_reason:
        engine.step()
        assert len(young.token_ids) == num_said
    step = engine.step()
    assert [(chunk.start, chunk.end) for chunk in step.prefills] == [(16, 15 + num_said)]
    assert not any(chunk.is_first for chunk in step.prefills)  # its prompt is counted once
    assert step.sampled == [young]


class Boundless(Pages):
    """Says that there is room for every prompt."""

    def has_room(self, sequence: Sequence) -> bool:
        return True


def test_no_prompt_is_started_in_a_step_that_preempts() -> None:
    scheduler = Scheduler(4, 64, Boundless(size(5)))
    scheduler.add([sequence([number] * 15, 40) for number in range(3)])
    while not scheduler.num_preempted:
        step = scheduler.schedule()
        for one in step.sampled:
            one.append(1, frozenset())
    assert step.prefills == []
    assert scheduler.num_prompts == 1


def test_a_sequence_that_is_alone_grows_to_the_last_page() -> None:
    engine = Engine(num_pages=4)
    engine.run(sequence([9] * 33))
    one = sequence([1] * 20, 44)
    engine.run(one)
    assert len(one.token_ids) == 44
    assert engine.scheduler.num_preempted == 0


def test_prompts_leave_a_page_for_each_sequence_that_runs() -> None:
    engine = Engine(num_pages=4)
    first, second, third = (sequence([number] * 16, 9) for number in range(3))
    engine.scheduler.add([first, second, third])
    engine.step()
    # A page each; the third would leave one for three to grow into.
    assert engine.scheduler.running == [first, second]


def test_short_prompts_do_not_take_the_pages_that_an_older_long_one_waits_for() -> None:
    engine = Engine(num_pages=10, max_num_seqs=9, budget=32)
    running = [sequence([number] * 16, 12) for number in range(4)]
    engine.scheduler.add(running)
    engine.step()
    engine.step()
    long, late = sequence([8] * 90), [sequence([50 + number] * 16, 12) for number in range(8)]
    engine.scheduler.add([long, *late])
    while not long.token_ids:
        engine.step()
    assert not any(one.token_ids and one.arrival > long.arrival + 3 for one in late)


ENDED = st.tuples(
    PROMPTS,
    st.integers(1, 30),
    st.sampled_from([("lora_name", None), ("lora_name", "a"), ("cache_salt", "a")]),
    st.booleans(),
)


@pytest.mark.threat("shared-prefix-timing")
@given(st.lists(ENDED, min_size=2, max_size=6))
def test_a_prompt_begins_with_all_that_is_known_of_its_beginning(asked: list[Any]) -> None:
    """Full pages of those that ended with its adapter and salt, their answers included, and of the
    next page what is alike; its last token is computed again.
    """
    engine, known = Engine(num_pages=200), list[tuple[tuple[str, str | None], list[int]]]()
    for prompt, num_output, owner, goes_on in asked:
        own = [tokens for other, tokens in known if other == owner]
        one = sequence([*own[-1], *prompt] if goes_on and own else prompt, num_output)
        setattr(one, *owner)
        alike = [sum(accumulate(map(eq, one.prompt_token_ids, tokens), and_)) for tokens in own]
        expected = min(max(alike, default=0), one.num_prompt_tokens - 1)
        assert engine.run(one) == [expected]
        computed = engine.said(one)[:-1]
        known.append((owner, computed[: len(computed) // PAGE_SIZE * PAGE_SIZE]))


@pytest.mark.parametrize("num_alike, num_ready", [(4, 0), (5, 5)])
def test_few_tokens_of_a_large_page_are_not_copied(num_alike: int, num_ready: int) -> None:
    pages, first = Pages(size(9, 256)), sequence(list(range(300)))
    pages.allocate(first)
    pages.note_computed(first, 300)
    pages.finish_step()
    other = sequence([*range(num_alike), *[999] * 300])
    assert pages.find(other).num_ready == num_ready


def test_choices_of_one_prompt_share_within_one_step() -> None:
    engine, prompt = Engine(), list(range(40))
    choices = [sequence(prompt, 3) for _ in range(3)]
    engine.scheduler.add(choices)
    step = engine.step()
    assert [(chunk.start, chunk.end) for chunk in step.prefills] == [(0, 40), (32, 40), (32, 40)]


def test_a_prompt_waits_for_the_rest_of_one_under_way() -> None:
    engine = Engine(budget=32)
    long, other = sequence(list(range(100))), sequence([*range(96), 200])
    engine.scheduler.add([long])
    engine.step()
    engine.scheduler.add([other])
    while not other.token_ids:
        engine.step()
    assert other.num_reused_tokens == 96


def test_others_do_not_wait_behind_one_that_waits_to_share() -> None:
    engine = Engine(budget=32)
    long, waiting = sequence(list(range(100))), sequence([*range(96), 200])
    engine.scheduler.add([long])
    engine.step()
    other = sequence([300] * 5)
    engine.scheduler.add([waiting, other])
    assert [chunk.sequence for chunk in engine.step().prefills] == [other, long]


def test_what_is_not_trusted_any_more_is_free_for_others() -> None:
    engine = Engine(num_pages=5)
    engine.run(sequence(list(range(48))))
    doubted = sequence([*range(40), 99, 98], 9)
    engine.scheduler.add([doubted])
    engine.step()
    assert doubted.num_reused_tokens == 40  # of which 8 are copied from a page that nobody holds
    engine.scheduler.expel([doubted])
    assert not engine.pages.num_kept
    assert engine.run(sequence([7] * 70), sequence([*range(48), 5])) == [0, 0]


def test_the_least_recently_used_pages_go_first_and_of_a_prompt_its_end() -> None:
    engine = Engine(num_pages=8)
    one, two = ([number] * 48 for number in (1, 2))
    engine.run(sequence(one))
    engine.run(sequence(two))
    engine.run(sequence([*one, 5]))
    engine.run(sequence([3] * 60))  # takes four pages, two of which nobody knew
    assert engine.run(sequence([*one, 6])) == [48]
    assert engine.run(sequence([*two, 6])) == [16]


def test_what_a_cancelled_prompt_had_not_computed_is_not_shared() -> None:
    engine = Engine(budget=32)
    long = sequence(list(range(100)))
    engine.scheduler.add([long])
    engine.step()
    engine.scheduler.retire([long])
    engine.check()
    assert engine.run(sequence([*range(100), 5])) == [32]


def test_pages_are_kept_for_those_alone_that_may_need_more() -> None:
    """With few large pages each sequence takes one, and needs no other."""
    pages = Pages(size(1 + 4, 256))
    scheduler = Scheduler(4, 64, pages)
    scheduler.add([sequence([number], 100) for number in range(4)])
    assert len(scheduler.schedule().prefills) == 4
    longer = Pages(size(1 + 4, 256))
    scheduler = Scheduler(4, 64, longer)
    scheduler.add([sequence([number], 300) for number in range(4)])
    assert len(scheduler.schedule().prefills) == 2


def test_a_sequences_pages_follow_each_other_while_others_grow_beside_it() -> None:
    engine = Engine(num_pages=99, max_num_seqs=4)
    together = [sequence([number] * 17, 60) for number in range(4)]
    engine.scheduler.add(together)
    while not all(len(one.pages) > 4 for one in together):
        engine.step()
    for one in together:
        assert list(one.pages) == list(range(one.pages[0], one.pages[0] + len(one.pages)))


def test_no_more_is_kept_than_may_be() -> None:
    pages = Pages(replace(size(40), most_kept=3))
    scheduler = Scheduler(4, 64, pages)
    one = sequence(list(range(80)))
    scheduler.add([one])
    while not one.token_ids:
        for sampled in scheduler.schedule().sampled:
            sampled.append(1, frozenset())
    scheduler.retire([one])
    assert pages.num_kept == 3
    assert pages.find(sequence(list(range(80)))).num_ready == 3 * PAGE_SIZE


@dataclass
class StateEngine(Engine):
    """A state is a list of the tokens that it has seen, by row."""

    states: dict[int, list[int]] = field(default_factory=dict)

    def new_pages(self) -> StatePages:
        pages = size(1 + self.num_pages, max_num_seqs=self.max_num_seqs)
        return StatePages(pages, shares=self.shares, snapshots=True)

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


STATE_SHAPES = st.builds(
    StateEngine,
    *(st.integers(8, 20), st.integers(1, 6), st.integers(6, 80), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(LOAD, STATE_SHAPES, st.data())
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
