"""Prefixes that prompts share, against a cache simulated as lists of tokens: whatever a slot holds
when a sequence computes in it is what that sequence says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.warm_up import dummy_sequence
from hf_triton.text_generation.memory import prefix_index, slot_contents
from hf_triton.text_generation.memory.slot_contents import SlotContents, SlotCopy, prefix_slot_order
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Token

FEWEST = 4


@pytest.fixture(autouse=True)
def four_tokens_are_worth_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prefix_index, slot_contents):
        monkeypatch.setattr(module, "MIN_TOKENS", FEWEST)


def sequence(prompt: list[int], max_tokens: int = 1) -> Sequence:
    return dummy_sequence(prompt, SamplingParams(max_tokens=max_tokens))


@dataclass
class Slots:
    """A scheduler that shares prefixes, and what the slots of its cache hold. Cell = token id.
    Slots of states are copied whole, and continued from their end alone.
    """

    num_slots: int = 4
    budget: int = 64
    num_own: int = 0
    max_kept: int = 99
    states: bool = False
    held: dict[int, list[int]] = field(default_factory=dict)
    num_written: Counter[int] = field(default_factory=Counter)
    num_computed: int = 0

    def __post_init__(self) -> None:
        order = prefix_slot_order(self.num_slots, self.num_own)
        self.contents = SlotContents(
            self.num_slots, self.num_own, self.max_kept, states=self.states
        )
        self.scheduler = Scheduler(self.num_slots, self.budget, self.contents)
        self.held = {slot: [] for slot in order}

    def step(self) -> Step:
        """Plays one, with the token 1 for whoever gets one."""
        step = self.scheduler.schedule()
        assert 0 < step.num_tokens <= max(self.budget, len(step.decodes))
        self.copy(step.copies)
        for one in step.decodes:
            self.compute(one, one.num_computed_tokens - 1, one.num_computed_tokens)
        for chunk in step.prefills:
            assert chunk.start < chunk.end
            self.compute(chunk.sequence, chunk.start, chunk.end)
        for one in step.sampled:
            one.append(Token(1), frozenset())
        self.retire([one for one in step.sampled if one.finish_reason])
        return step

    def compute(self, one: Sequence, start: int, end: int) -> None:
        """Writes tokens behind its own, and over whatever else."""
        said = one.prompt_token_ids + one.token_ids
        assert self.held[one.slot][: None if self.states and start else start] == said[:start]
        assert self.num_written[one.slot] <= start, "a step would read what another left"
        self.held[one.slot], self.num_written[one.slot] = said[:end], end
        self.num_computed += end - start

    def retire(self, gone: list[Sequence]) -> None:
        self.copy(self.scheduler.retire(gone))
        running = self.scheduler.running
        assert [one.slot for one in running] == list(range(len(running)))

    def copy(self, copies: list[SlotCopy]) -> None:
        for copy in copies:
            assert copy.source != copy.target or copy.num_written > copy.num_tokens
            assert len(self.held[copy.source]) >= copy.num_tokens
            copied = None if self.states else copy.num_tokens
            self.held[copy.target] = self.held[copy.source][:copied]
            is_cleared = self.num_written[copy.target] <= copy.num_written
            left = 0 if is_cleared else self.num_written[copy.target]
            self.num_written[copy.target] = max(copy.num_tokens, left)

    def run(self, *sequences: Sequence) -> list[int]:
        """Computes them to their end -> how many tokens of each were there already."""
        self.scheduler.add(sequences)
        while self.scheduler.has_work:
            self.step()
        return [one.num_reused_tokens for one in sequences]


# Few tokens in few places: most prompts share some beginning with another.
STEMS = [[7] * 6 + [8, 9], [7] * 12, [5, 5, 5, 5], list(range(20, 50))]
PROMPTS = st.builds(
    lambda stem, num, tail: stem[:num] + tail,
    st.sampled_from(STEMS),
    st.integers(1, 30),
    st.lists(st.integers(1, 3), max_size=9),
)
LOAD = st.lists(st.tuples(PROMPTS, st.integers(1, 6)), min_size=1, max_size=14)
SHAPES = st.builds(
    Slots,
    st.integers(1, 5),
    st.integers(1, 24),
    st.integers(0, 3),
    st.integers(1, 8),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(LOAD, SHAPES, st.data())
def test_each_sequence_continues_what_its_slot_holds_whoever_comes_and_goes(
    load: list[tuple[list[int], int]], slots: Slots, data: st.DataObject
) -> None:
    scheduler = slots.scheduler
    arriving = [sequence(prompt, output) for prompt, output in load]
    everything, left = list(arriving), []
    while arriving or scheduler.has_work:
        count = data.draw(st.integers(0, 3)) if scheduler.has_work else 1
        scheduler.add(arriving[:count])
        del arriving[:count]
        slots.step()
        what = data.draw(st.sampled_from(["go on"] * 6 + ["cancel", "fail"]))
        if what == "cancel":
            there = [one for one in everything if one not in arriving and not one.finish_reason]
            leaving = [one for one in there if one not in left][: data.draw(st.integers(0, 2))]
            left += leaving
            slots.retire(leaving)
        elif what == "fail":
            left += scheduler.drain_running()
            slots.held = {slot: [99] * 50 for slot in slots.held}  # whatever may lie there now
    finished = [one for one in everything if one not in left]
    assert all(len(one.token_ids) == one.params.max_tokens for one in finished)
    assert not scheduler.holding


def test_a_prompt_starts_with_what_an_ended_one_had_alike_and_its_answer() -> None:
    slots, prompt = Slots(), list(range(20))
    assert slots.run(sequence([*prompt, 1, 2])) == [0]
    assert slots.run(sequence([*prompt, 3])) == [20]
    assert slots.run(sequence(prompt, max_tokens=5)) == [19]  # its last token is computed again
    assert slots.run(sequence([*prompt, 1, 1, 1, 1, 1, 30, 31])) == [24]  # the fifth was answered


def test_a_state_is_shared_by_who_continues_all_of_it() -> None:
    slots, prompt = Slots(states=True), list(range(20))
    slots.run(sequence(prompt, max_tokens=5))
    assert slots.run(sequence(prompt), sequence([*prompt, 30])) == [0, 0]
    assert slots.run(sequence([*prompt, 1, 1, 1, 1, 30], max_tokens=3)) == [24]
    assert slots.run(sequence([*prompt, 1, 1, 1, 1, 30, 1, 1, 9])) == [27]


@pytest.mark.threat("shared-prefix-timing")
@pytest.mark.parametrize("of_whom", ["cache_salt", "lora_name"])
def test_requests_of_one_salt_or_adapter_share_with_each_other_alone(of_whom: str) -> None:
    slots, prompt = Slots(), list(range(20))
    slots.run(sequence(prompt))
    one, again, other = (sequence([*prompt, last]) for last in (5, 6, 7))
    for each, value in ((one, "a"), (again, "a"), (other, "b")):
        setattr(each, of_whom, value)
    assert slots.run(one) == slots.run(other) == [0]
    assert slots.run(again) == [20]
    assert slots.run(sequence([*prompt, 8])) == [20]


def test_few_tokens_alike_are_not_copied() -> None:
    slots = Slots()
    slots.run(sequence([5, 6, 7, 8]))
    assert slots.run(sequence([5, 6, 7, 9, 9, 9, 9, 9])) == [0]


def test_who_runs_shares_what_it_has_computed() -> None:
    slots = Slots()
    slots.scheduler.add([sequence(list(range(20)), max_tokens=9)])
    slots.step()
    other = sequence([*range(20), 40])
    slots.scheduler.add([other])
    slots.step()
    assert other.num_reused_tokens == 20


def test_choices_of_one_prompt_wait_for_the_first_ones_step() -> None:
    slots, prompt = Slots(), list(range(20))
    choices = [sequence(prompt, max_tokens=3) for _ in range(3)]
    slots.scheduler.add(choices)
    assert [chunk.sequence for chunk in slots.step().prefills] == choices[:1]
    assert [chunk.sequence for chunk in slots.step().prefills] == choices[1:]
    assert slots.num_computed == 20 + 1 + 2


def test_others_do_not_wait_behind_one_that_waits_to_share() -> None:
    slots, prompt = Slots(), list(range(20))
    first, second, other = sequence(prompt), sequence(prompt), sequence([9] * 5)
    slots.scheduler.add([first, second, other])
    assert [chunk.sequence for chunk in slots.step().prefills] == [first, other]


def test_a_prompt_joins_the_computed_part_of_one_under_way() -> None:
    slots = Slots(budget=16)
    long, other = sequence(list(range(100))), sequence([*range(12), 50])
    slots.scheduler.add([long])
    slots.step()
    slots.scheduler.add([other])
    slots.step()
    assert other.num_reused_tokens == 12


def test_a_long_prompt_that_shares_most_does_not_wait_behind_a_longer_one() -> None:
    slots = Slots(budget=16)
    slots.run(sequence(list(range(100))))
    stranger, known = sequence([200 + at for at in range(100)]), sequence([*range(90), 300])
    slots.scheduler.add([stranger, known])
    assert known in slots.step().sampled


def test_a_prompt_whose_prefix_is_gone_is_computed_in_its_turn() -> None:
    slots = Slots(num_slots=2, budget=16)
    slots.run(sequence(list(range(60))))
    known = sequence([*range(50), 300])
    slots.scheduler.add([known])
    slots.contents.clear()
    while slots.scheduler.has_work:
        slots.step()
    assert known.num_reused_tokens == 0
    assert known.finish_reason == "length"


def test_the_least_recently_used_prefix_goes_first() -> None:
    slots = Slots(max_kept=2)
    one, two, three = ([base + at for at in range(10)] for base in (100, 200, 300))
    slots.run(sequence(one))
    slots.run(sequence(two))
    slots.run(sequence([*one, 1]))
    slots.run(sequence(three))
    assert slots.run(sequence([*one, 2])) == [10]
    assert slots.run(sequence([*two, 2])) == [0]


def test_a_busy_server_keeps_what_has_slots_of_its_own() -> None:
    everyone = [[base * 100 + at for at in range(10)] for base in range(2)]
    for num_own, expected in ((0, 0), (1, 10)):
        slots = Slots(num_slots=2, num_own=num_own)
        slots.run(sequence(list(range(500, 510))))
        slots.run(*(sequence(prompt, max_tokens=3) for prompt in everyone))
        assert slots.run(sequence([*range(500, 510), 1])) == [expected]


def test_a_prompt_goes_on_where_it_lies_without_any_copy() -> None:
    slots = Slots(num_slots=1)
    slots.run(sequence(list(range(20))))
    slots.scheduler.add([sequence([*range(20), 5])])
    step = slots.step()
    assert all(copy.source == copy.target for copy in step.copies)
    assert step.num_tokens == 1


def test_what_another_prefix_says_already_is_not_kept_twice() -> None:
    slots, prompt = Slots(), list(range(20))
    slots.run(sequence(prompt))
    slots.run(sequence([*prompt, 5, 6]))
    assert slots.contents.num_kept == 1
    slots.run(sequence(prompt[:10]))
    assert slots.contents.num_kept == 1
