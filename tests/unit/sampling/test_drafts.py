"""What is drafted: what a text goes on with where its end stood before, as much of it as pays."""

from __future__ import annotations

import random

import pytest

from hf_triton.text_generation.sampling.speculative.costs import Costs
from hf_triton.text_generation.sampling.speculative.ngram_proposer import Ngrams


def looked_up(text: list[int], least: int, most: int) -> list[int]:
    """The ends of the places where the most of the last tokens stood before, from ``least`` on."""
    for length in range(min(most, len(text) - 1), least - 1, -1):
        ends = range(length, len(text))
        places = [end for end in ends if text[end - length : end] == text[-length:]]
        if places:
            return places
    return []


@pytest.mark.parametrize("least, most", [(1, 1), (2, 4), (3, 3)])
def test_the_longest_end_that_stood_before_is_found(least: int, most: int) -> None:
    rnd = random.Random(least)
    for _ in range(200):
        text = [rnd.randrange(4) for _ in range(rnd.randrange(12))]
        at_once = Ngrams(least, most, text)
        places = looked_up(text, least, most)
        assert at_once.has_proposal == bool(places)
        assert not places or at_once.propose(1) == [text[places[-1]]]


def test_a_text_that_grows_goes_on_where_it_was_right_and_is_looked_up_where_not() -> None:
    ngrams = Ngrams(2, 3, [1, 2, 3, 4, 9, 1])
    assert ngrams.propose(3) == []
    assert ngrams.append(2) is None
    assert ngrams.propose(3) == [3, 4, 9]
    assert [ngrams.append(token_id) for token_id in (3, 4, 8)] == [True, True, False]
    assert not ngrams.has_proposal
    assert [ngrams.append(token_id) for token_id in (3, 4)] == [None, None]
    assert ngrams.propose(2) == [8, 3]  # the last place of two as good


def test_what_runs_into_the_end_of_the_text_goes_round() -> None:
    assert Ngrams(2, 4, [7, 1, 2, 1, 2]).propose(5) == [1, 2, 1, 2, 1]
    assert Ngrams(1, 4, [6, 6]).propose(3) == [6, 6, 6]


def measured(num_seqs: int, cost: float) -> Costs:
    """Where a drafted token costs so much of a generated one."""
    costs = Costs()
    for _ in range(100):
        costs.note(num_seqs, 0, 1e-3)
        costs.note(num_seqs, 2 * num_seqs, 1e-3 * (1 + 2 * cost))
    return costs


def test_as_many_tokens_are_drafted_as_give_the_most_for_their_time() -> None:
    for cost in (0.05, 0.2, 0.5, 0.9):
        costs = measured(4, cost)
        for rate in (0.1, 0.4, 0.8, 0.95):
            speeds = [
                sum(rate**number for number in range(length + 1)) / (1 + cost * length)
                for length in range(17)
            ]
            length = costs.best_length(4, rate, 16)
            assert speeds[length] == pytest.approx(max(speeds), rel=1e-3)


def test_nothing_is_drafted_where_it_costs_what_it_brings_but_it_is_tried_again() -> None:
    costs = measured(32, 1.0)
    assert costs.best_length(32, 0.98, 8) == 0
    assert costs.best_length(1, 0.9, 8) > 2  # not measured yet
    num_trials = sum(costs.is_trial(32) for _ in range(100_000))
    assert 20 < num_trials < 60


def test_a_step_that_was_held_up_counts_little() -> None:
    costs = measured(8, 0.2)
    before = costs.best_length(8, 0.9, 16)
    costs.note(8, 0, 10.0)
    costs.note(8, 16, 10.0)
    assert abs(costs.best_length(8, 0.9, 16) - before) <= 3


def test_steps_without_drafts_are_measured_now_and_then() -> None:
    costs = measured(8, 0.2)
    assert costs.has_plain(8)
    assert not costs.has_plain(9)
    for _ in range(100):
        costs.note(8, 8, 1e-3)
    assert not costs.has_plain(8)


def gain(num_seqs: int, cost: float, rate: float) -> float:
    """Tokens for the time that steps take, over those without drafts, where a drafted token costs
    so much of a generated one, each is right at that rate, and the clock sees steps held up.
    """
    rnd, costs, tokens, time, is_trying = random.Random(0), Costs(), 0, 0.0, False
    for _ in range(2000):
        lengths = [0] * num_seqs
        if costs.has_plain(num_seqs):
            length = costs.best_length(num_seqs, rate, 8)
            if length:
                costs.pays(num_seqs)
                lengths = [length] * num_seqs
            elif is_trying or costs.is_trial(num_seqs):
                is_trying = True
                lengths[: -(-num_seqs // 4)] = [2] * -(-num_seqs // 4)
        for length in lengths:
            num_right = next((n for n in range(length) if rnd.random() >= rate), length)
            tokens += 1 + num_right
        seconds = 1 + cost * sum(lengths) / num_seqs
        time += seconds
        costs.note(num_seqs, sum(lengths), seconds * (1 + abs(rnd.gauss(0, 0.4))))
        is_trying = is_trying and not any(lengths)
    return tokens / (num_seqs * time)


def test_drafts_bring_what_they_can_and_cost_less_than_a_hundredth() -> None:
    for cost in (0.1, 0.9, 1.2):
        for rate in (0.2, 0.6, 0.98):
            assert gain(32, cost, rate) > 0.99, (cost, rate)
    assert gain(1, 0.1, 0.9) > 3
    assert gain(8, 0.2, 0.9) > 2
