"""Drafts the tokens that followed the text's end where it stood before, as many as pay."""

from __future__ import annotations

import random

import pytest

from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.sampling.drafter import Ngrams, best_length


def looked_up(text: list[int]) -> list[int]:
    """The ends of the places where the most of the last tokens stood before, from two to four."""
    for length in range(min(4, len(text) - 1), 1, -1):
        ends = range(length, len(text))
        places = [end for end in ends if text[end - length : end] == text[-length:]]
        if places:
            return places
    return []


def test_the_longest_end_that_stood_before_is_found() -> None:
    rnd = random.Random(1)
    for _ in range(600):
        text = [rnd.randrange(4) for _ in range(rnd.randrange(12))]
        at_once = Ngrams(text)
        places = looked_up(text)
        assert at_once.has_proposal == bool(places)
        assert not places or at_once.propose(1) == [text[places[-1]]]


def test_a_text_that_grows_goes_on_where_it_was_right_and_is_looked_up_where_not() -> None:
    ngrams = Ngrams([1, 2, 3, 4, 9, 1])
    assert ngrams.propose(3) == []
    assert ngrams.append(2) is None
    assert ngrams.propose(3) == [3, 4, 9]
    assert [ngrams.append(token_id) for token_id in (3, 4, 8)] == [True, True, False]
    assert not ngrams.has_proposal
    assert [ngrams.append(token_id) for token_id in (3, 4)] == [None, None]
    assert ngrams.propose(2) == [8, 3]  # the last place of two as good


def test_what_runs_into_the_end_of_the_text_goes_round() -> None:
    assert Ngrams([7, 1, 2, 1, 2]).propose(5) == [1, 2, 1, 2, 1]
    assert Ngrams([6, 6, 6]).propose(3) == [6, 6, 6]


@pytest.mark.parametrize("cost", [0.05, 0.2, 0.5, 0.9])
def test_as_many_tokens_are_drafted_as_give_the_most_for_their_time(cost: float) -> None:
    for rate in (0.1, 0.4, 0.8, 0.95):
        speeds = [
            sum(rate**number for number in range(length + 1)) / (1 + cost * length)
            for length in range(17)
        ]
        assert speeds[best_length(cost, rate, 16)] == pytest.approx(max(speeds), rel=1e-3)


def test_a_token_costs_what_it_adds_to_a_step() -> None:
    times = StepTimes()
    assert times.cost_of_token(4) is None
    times.note(4, 0, 0.02)
    assert times.cost_of_token(4) is None
    times.note(4, 100, 0.12)
    assert times.cost_of_token(4) == pytest.approx(0.2)
    assert times.cost_of_token(1) == pytest.approx(0.05)  # as for the nearest number
