"""The scheduler, over as many pages as it asks for."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engines.in_flight.trial import dummy_sequence
from hf_triton.text_generation.memory.pages import Pages
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import LOWEST_PRIORITY, Sequence
from hf_triton.text_generation.sequence.source import Source
from tests.model.engine.runners.test_pages import Engine, size


def sequence(num_prompt_tokens: int, max_tokens: int = 1) -> Sequence:
    return dummy_sequence(list(range(num_prompt_tokens)), SamplingParams(max_tokens=max_tokens))


def made(max_num_seqs: int, max_num_batched_tokens: int, **options: Any) -> Scheduler:
    """Pages are enough for all."""
    pages = Pages(size(100_000), shares=False)
    return Scheduler(max_num_seqs, max_num_batched_tokens, pages, **options)


def playing(max_num_seqs: int, budget: int, **options: Any) -> Engine:
    """Plays a scheduler's steps as a runner would."""
    engine = Engine(300, max_num_seqs, budget, shares=False)
    engine.scheduler = Scheduler(max_num_seqs, budget, engine.pages, **options)
    return engine


LOAD = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=14)


@settings(max_examples=120, deadline=None)
@given(LOAD, st.integers(1, 5), st.integers(1, 12), st.data())
def test_every_sequence_finishes_with_each_token_computed_once(
    load: list[tuple[int, int]], max_num_seqs: int, budget: int, data: st.DataObject
) -> None:
    limit = data.draw(st.integers(1, 12))  # of prompts beside decodes
    engine = playing(max_num_seqs, budget, prompt_limit=lambda _: limit)
    scheduler = engine.scheduler
    arriving = [sequence(prompt, output) for prompt, output in load]
    everything = list(arriving)
    while arriving or scheduler.has_work:
        count = data.draw(st.integers(0, 3)) if scheduler.has_work else 1
        scheduler.add(arriving[:count])
        del arriving[:count]
        assert engine.step().num_tokens
    for one in everything:
        assert len(one.token_ids) == one.params.max_tokens
        # The last token is answered, not computed.
        expected = one.num_prompt_tokens + one.params.max_tokens - 1
        assert engine.num_computed[one] == expected


@settings(max_examples=50, deadline=None)
@given(LOAD, st.integers(1, 5), st.integers(1, 12), st.integers(0, 30))
def test_drain_gives_back_each_unfinished_sequence_once_and_leaves_nothing(
    load: list[tuple[int, int]], max_num_seqs: int, budget: int, num_steps: int
) -> None:
    engine = playing(max_num_seqs, budget)
    everything = [sequence(prompt, output) for prompt, output in load]
    engine.scheduler.add(everything)
    for _ in range(num_steps):
        if engine.scheduler.has_work:
            engine.step()
    drained = engine.scheduler.drain()
    assert not engine.scheduler.has_work
    unfinished = [id(one) for one in everything if not one.finish_reason]
    assert sorted(map(id, drained)) == sorted(unfinished)


def test_short_prompts_are_taken_in_order_of_arrival() -> None:
    scheduler = made(8, 10)
    first, second, third = sequence(4), sequence(5), sequence(3)
    scheduler.add([first, second])
    scheduler.add([third])
    step = scheduler.schedule()
    chunks = [(first, 0, 4), (second, 0, 5), (third, 0, 1)]
    assert [(c.sequence, c.start, c.end) for c in step.prefills] == chunks
    assert step.sampled == [first, second]
    scheduler.retire([])
    step = scheduler.schedule()
    assert step.decodes == [first, second]
    assert [(c.sequence, c.start, c.end) for c in step.prefills] == [(third, 1, 3)]


def num_steps_until_sampled(scheduler: Scheduler, awaited: Sequence) -> int:
    for number in range(1, 200):
        step = scheduler.schedule()
        scheduler.retire([])
        if awaited in step.sampled:
            return number
    raise AssertionError("never sampled")


@settings(max_examples=50, deadline=None)
@given(LOAD, st.integers(1, 5), st.integers(1, 12))
def test_prompts_that_are_not_cut_are_computed_whole_and_one_passes_the_budget(
    load: list[tuple[int, int]], max_num_seqs: int, budget: int
) -> None:
    scheduler = made(max_num_seqs, budget, chunked_prefill=False)
    everything = [sequence(prompt, output) for prompt, output in load]
    scheduler.add(everything)
    while scheduler.has_work:
        step = scheduler.schedule()
        assert step.num_tokens
        lengths = [chunk.end - chunk.start for chunk in step.prefills]
        assert all(chunk.is_first and chunk.is_last for chunk in step.prefills)
        assert not lengths or len(step.decodes) + sum(lengths) - lengths[-1] < budget
        for one in step.sampled:
            one.append(0, frozenset())
        scheduler.retire([one for one in step.sampled if one.finish_reason])
    assert all(len(one.token_ids) == one.params.max_tokens for one in everything)


def background(num_prompt_tokens: int, max_tokens: int = 1) -> Sequence:
    made = sequence(num_prompt_tokens, max_tokens)
    made.priority = LOWEST_PRIORITY
    return made


def test_the_background_pauses_while_others_run_and_goes_on_where_it_was() -> None:
    engine = playing(4, 64, pauses_background=True)
    scheduler, own = engine.scheduler, [background(4, 6), background(4, 6)]
    scheduler.add(own)
    assert engine.step().sampled == own
    other, late = sequence(4, 3), background(4, 2)
    scheduler.add([late])
    scheduler.add([other])
    assert [engine.step().sampled for _ in range(3)] == [[other]] * 3
    while scheduler.has_work:
        engine.step()
    assert [len(one.token_ids) for one in (*own, late)] == [6, 6, 2]
    assert [engine.num_computed[one] for one in own] == [9, 9]


def test_a_prompt_takes_the_place_of_the_background() -> None:
    scheduler = made(2, 64, pauses_background=True)
    long, short = background(500, 9), background(4, 9)
    scheduler.add([long, short])
    step = scheduler.schedule()
    assert step.num_tokens <= 32, "who comes meanwhile waits for this step"
    others = [sequence(4, 9), sequence(4, 9)]
    scheduler.add(others)
    steps = [scheduler.schedule() for _ in range(2)]
    assert steps[1].sampled == others
    assert {one.num_computed_tokens for one in (long, short)} == {0}


@settings(max_examples=80, deadline=None)
@given(LOAD, st.integers(1, 5), st.integers(1, 12), st.data())
def test_the_background_ends_too_and_no_step_mixes_it_with_others(
    load: list[tuple[int, int]], max_num_seqs: int, budget: int, data: st.DataObject
) -> None:
    engine = playing(max_num_seqs, budget, pauses_background=True)
    kinds = data.draw(st.lists(st.booleans(), min_size=len(load), max_size=len(load)))
    pairs = zip(kinds, load, strict=True)
    arriving = [background(*one) if kind else sequence(*one) for kind, one in pairs]
    everything = list(arriving)
    while arriving or engine.scheduler.has_work:
        count = data.draw(st.integers(0, 3)) if engine.scheduler.has_work else 1
        engine.scheduler.add(arriving[:count])
        del arriving[:count]
        step = engine.step()
        assert step.num_tokens
        assert len({one.is_background for one in step.sequences}) == 1
    assert all(len(one.token_ids) == one.params.max_tokens for one in everything)


def test_a_step_encodes_no_more_than_its_tokens_or_one_long_source() -> None:
    scheduler = made(8, 10)
    sources = [4, 6, 25, 0, 1]
    sequences = [sequence(1, max_tokens=9) for _ in sources]
    for one, num_tokens in zip(sequences, sources, strict=True):
        one.source = Source({}, num_tokens)
    scheduler.add(sequences)
    begun = [[chunk.sequence for chunk in scheduler.schedule().prefills] for _ in range(3)]
    assert begun == [sequences[:2], sequences[2:4], sequences[4:]]


def test_a_short_prompt_does_not_wait_for_the_long_ones_before_it() -> None:
    scheduler = made(32, 100)
    short = sequence(10, 9)
    scheduler.add([*(sequence(1000, 9) for _ in range(20)), short])
    assert num_steps_until_sampled(scheduler, short) == 1


def test_a_long_prompt_does_not_starve_in_a_flood_of_short_ones() -> None:
    """It gets half of every step and what the short ones leave: 60 of 100 tokens here."""
    scheduler = made(10_000, 100)
    long = sequence(1000)
    flood = [sequence(20) for _ in range(2000)]
    scheduler.add([*flood[:1000], long, *flood[1000:]])
    num_steps = 0
    while not long.token_ids:
        step = scheduler.schedule()
        for one in step.sampled:
            one.append(0, frozenset())
        scheduler.retire([one for one in step.sampled if one.finish_reason])
        num_steps += 1
    assert num_steps == 17
    assert sum(bool(one.token_ids) for one in flood) >= 16 * 2


def test_the_last_free_place_goes_to_who_came_first() -> None:
    for long_first in (True, False):
        scheduler = made(1, 10)
        long, short = sequence(25), sequence(2)
        scheduler.add([long, short] if long_first else [short, long])
        assert scheduler.schedule().prefills[0].sequence is (long if long_first else short)


def test_a_short_prompt_waits_for_no_long_one_whose_chunks_are_small() -> None:
    engine = playing(4, 64, prompt_limit=lambda _: 4)
    engine.scheduler.add([sequence(3, max_tokens=40)])
    engine.step()
    long, short = sequence(60), sequence(20)
    engine.scheduler.add([long])
    engine.step()
    engine.scheduler.add([short])
    step = engine.step()
    sizes = {chunk.sequence: chunk.end - chunk.start for chunk in step.prefills}
    assert sizes == {short: 20, long: 2}


def test_who_waits_begins_by_priority_and_then_by_arrival() -> None:
    engine, ended = playing(1, 8), list[Sequence]()
    waiting = [sequence(length) for length in (2, 3, 30, 2, 3)]
    for one, priority in zip(waiting, (0, 5, -1, 0, -1), strict=True):
        one.priority = priority
    engine.scheduler.add(waiting)
    while engine.scheduler.has_work:
        ended += [one for one in engine.step().sampled if one.finish_reason]
    assert [waiting.index(one) for one in ended] == [2, 4, 0, 3, 1]
