"""Texts are cut as the tokenizer itself would, and threads do not cut each other's texts."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.encoder.texts.truncation import Truncator
from hf_triton.runtime.errors import RequestError
from tests.support.other_tokenizers import KINDS, other_tokenizer
from tests.support.tiny_encoders import WORDS, texts, tiny_tokenizer
from tests.support.triton import eventually

MAX_LENGTH = 24
# transformers' names of what a tokenizer tells, and tokenizers' own.
_NAMES = {"input_ids": "ids", "token_type_ids": "type_ids", "offset_mapping": "offsets"}


def tokenizer_of(kind: str) -> Any:
    return other_tokenizer(kind) if kind in KINDS else tiny_tokenizer(kind)


def tokenization(kind: str, cuts: str = "longest_first", **changes: Any) -> Tokenization:
    tokenizer = tokenizer_of(kind)
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    types = "token_type_ids" in tokenizer.model_input_names
    limits: dict[str, Any] = {"max_length": MAX_LENGTH, "truncation": False}
    return Tokenization(tokenizer, **limits, has_token_types=types, cuts=cuts)


def words(draw: random.Random, most: int) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["bert", "roberta", *KINDS])
def test_a_text_and_a_pair_are_cut_as_the_tokenizer_cuts_them(
    kind: str, side: str, strategy: str
) -> None:
    ours = tokenization(kind, strategy, truncation_side=side)
    theirs = tokenizer_of(kind)
    theirs.truncation_side = side
    draw = random.Random(3)
    most = {"longest_first": (40, 40), "only_first": (40, 3), "only_second": (3, 40)}[strategy]
    options: dict[str, Any] = {"truncation": strategy, "return_offsets_mapping": True}
    for _ in range(30):
        alone = strategy == "longest_first" and draw.random() < 0.3
        text, pair = words(draw, most[0]), None if alone else words(draw, most[1])
        expected = theirs(text, pair, max_length=MAX_LENGTH, **options)
        got = ours.tokens("text_input", text, pair, truncate=True, has_places=True)
        for name, own in _NAMES.items():
            if name in expected:
                assert [*getattr(got, own)] == [*expected[name]], (name, text, pair)
        without_places = ours.encode("text_input", text, pair, truncate=True)
        assert without_places.input_ids == expected["input_ids"], (text, pair)


@pytest.mark.parametrize("text, kept", [("cat dog", "cat dog"), ("cat dog cat cat", "cat dog cat")])
@pytest.mark.parametrize("pair", ["$A $B:1", "$A $B"])
def test_a_pair_without_special_tokens_keeps_its_types(text: str, kept: str, pair: str) -> None:
    limits: dict[str, Any] = {"max_length": 4, "truncation": True, "has_token_types": True}
    tokenizer = tokenizer_of("bert")
    start = {"single": "[CLS] $A", "special_tokens": [("[CLS]", tokenizer.cls_token_id)]}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(pair=f"[CLS] {pair}", **start)
    ours = Tokenization(tokenizer, **limits, adds_special_tokens=False)
    found = ours.encode("text_input", text, "house")
    expected = tokenizer(kept, "house", add_special_tokens=False)
    assert found.input_ids == expected["input_ids"]
    assert found.token_type_ids == expected["token_type_ids"]


def test_one_threads_cutting_leaves_anothers_text_whole() -> None:
    ours = tokenization("bert")
    text = "anna lives in paris " * 200
    wrong: list[object] = []

    def ask(*, truncate: bool) -> None:
        for _ in range(50):
            try:
                num_tokens = len(ours.encode("text_input", text, truncate=truncate))
            except RequestError:
                num_tokens = 0
            if num_tokens != (MAX_LENGTH if truncate else 0):
                wrong.append((truncate, num_tokens))

    threads = [threading.Thread(target=ask, kwargs={"truncate": i % 2 == 0}) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_tokenizer_json_says_of_truncation_and_padding_is_not_followed() -> None:
    tokenizer = tiny_tokenizer("bert")
    tokenizer.backend_tokenizer.enable_truncation(8)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    ours = Tokenization(tokenizer, max_length=20, truncation=False, has_token_types=True)
    assert len(ours.encode("text_input", "the cat sat on the mat and ran to the house")) == 13


def test_a_text_that_may_not_be_cut_and_leaves_no_room_is_refused() -> None:
    with pytest.raises(RequestError, match=r"one text of the pair is 40 tokens long .* 20"):
        tokenization("bert", "only_second").tokens("text_input", "cat " * 40, "dog", truncate=True)


def test_other_threads_go_on_while_a_long_text_is_tokenised() -> None:
    truncator = Truncator(tiny_tokenizer("bert"))
    text = " ".join(texts(20_000, longest=10))

    def num_turns() -> int:
        """Counts this thread's turns while another one tokenises the text."""
        thread = threading.Thread(target=truncator.pieces, args=(text,))
        thread.start()
        found = 0
        while thread.is_alive():
            time.sleep(0.001)
            found += 1
        return found

    # On a busy machine a turn can take as long as a text.
    assert eventually(lambda: num_turns() > 50)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("kind", ["bert", "roberta", *KINDS])
def test_a_text_paired_with_each_of_several_is_what_each_pair_alone_is(
    kind: str, truncate: bool
) -> None:
    tokens, draw = tokenization(kind, "only_first"), random.Random(8)
    tokens.max_length = MAX_LENGTH if truncate else 1000
    for most in (4, 12, 40):
        text = words(draw, most)
        seconds = [words(draw, 4) for _ in range(6)]
        expected = [tokens.encode("a", text, second, truncate=truncate) for second in seconds]
        found = tokens.pairs("a", text, seconds, truncate=truncate)
        assert [one.input_ids for one in found] == [one.input_ids for one in expected]
        assert [one.token_type_ids for one in found] == [one.token_type_ids for one in expected]


def test_a_text_is_tokenised_once_however_many_it_is_paired_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces, asked = Truncator.pieces, list[str]()

    def noted(self: Truncator, text: str, **options: Any) -> Any:
        asked.append(text)
        return pieces(self, text, **options)

    monkeypatch.setattr(Truncator, "pieces", noted)
    tokenization("bert").pairs("a", "a long text", [f"label {number}" for number in range(50)])
    assert asked.count("a long text") == 1


def test_a_text_too_long_for_one_of_several_is_refused() -> None:
    with pytest.raises(
        RequestError, match=f"a: got .* tokens, this model takes at most {MAX_LENGTH}"
    ):
        tokenization("bert").pairs("a", "cat " * 12, ["dog", "dog " * 12])
