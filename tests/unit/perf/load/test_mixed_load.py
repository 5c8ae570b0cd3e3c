"""The mixed load is the same for every target, and as mixed as it says."""

from __future__ import annotations

from itertools import islice

from perf.load.requests import (
    LONGEST_PROMPT,
    NUM_SPECIAL_TOKENS,
    OUTPUT_LENGTHS,
    SHORTEST_PROMPT,
    VOCABULARY_SIZE,
    num_words,
    requests,
    word,
)


def test_a_seed_gives_the_same_requests_again() -> None:
    assert list(islice(requests(7), 50)) == list(islice(requests(7), 50))
    assert list(islice(requests(7), 50)) != list(islice(requests(8), 50))


def test_every_five_requests_ask_for_each_length_once() -> None:
    asked = [request.max_tokens for request in islice(requests(0), 100)]
    for start in range(0, 100, 5):
        assert sorted(asked[start : start + 5]) == list(OUTPUT_LENGTHS)
    assert asked[:5] != asked[5:10] or asked[5:10] != asked[10:15]


def test_prompts_have_the_stated_number_of_words_and_reach_both_ends() -> None:
    lengths = set()
    for request in islice(requests(0), 1000):
        assert num_words(request.prompt) == request.num_prompt_tokens
        lengths.add(request.num_prompt_tokens)
    assert (min(lengths), max(lengths)) == (SHORTEST_PROMPT, LONGEST_PROMPT)


def test_every_token_is_a_word_of_its_own() -> None:
    words = {word(token_id) for token_id in range(NUM_SPECIAL_TOKENS, VOCABULARY_SIZE)}
    assert len(words) == VOCABULARY_SIZE - NUM_SPECIAL_TOKENS
    assert all(text.isascii() and text.isalpha() for text in words)
