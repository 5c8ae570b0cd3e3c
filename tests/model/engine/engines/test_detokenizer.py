"""Text never splits a character, equals the whole output decoded at once, and ends before the first
stop word.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence
from tests.model.engine.sampling.test_structured import byte_level
from tests.support.driving import Caller

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def sentence_piece() -> Any:
    """Llama's form: spaces are part of tokens, bytes stand for what has no token, and a leading
    space is dropped from whatever is decoded at once.
    """
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁the", "▁cat", "▁", "s", "STOP", "▁ST", "OP", "é", ",", "a", "b"]
    model = models.BPE(
        vocab={word: number for number, word in enumerate(words)}, merges=[], byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


TOKENIZERS = {"byte-level": byte_level(), "sentence-piece": sentence_piece()}


def decode(tokenizer: Any, token_ids: list[int]) -> str:
    text: str = tokenizer.decode(token_ids, skip_special_tokens=True)
    return text


def text_of(detokenizer: Detokenizer, output: list[int]) -> str:
    """The text of an output that is decoded at its end."""
    detokenizer.add(output)
    return detokenizer.release(final=True)


def whole(tokenizer: Any, prompt: list[int], output: list[int]) -> str:
    return decode(tokenizer, prompt + output)[len(decode(tokenizer, prompt)) :]


def ids_of(tokenizer: Any, *words: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(word) for word in words]


PROMPTS = st.sampled_from(["", "the cat", "é 🙂🙂", "🙂🙂🙂🙂a🙂🙂", "the the the the the the the"])
PIECES = st.sampled_from(["▁the", "▁cat", "▁", "s", "STOP", "é", ",", "<s>", "🙂", "你", "—"])


def sentence_piece_ids(*pieces: str) -> list[int]:
    """The ids of pieces; a character without a token is its bytes' tokens."""
    tokenizer, token_ids = TOKENIZERS["sentence-piece"], []
    for piece in pieces:
        known = piece in tokenizer.get_vocab()
        token_ids += ids_of(
            tokenizer, *([piece] if known else [f"<0x{byte:02X}>" for byte in piece.encode()])
        )
    return token_ids


def assert_like_at_once(tokenizer: Any, prompt: list[int], output: list[int]) -> None:
    expected = whole(tokenizer, prompt, output)
    assert text_of(Detokenizer(tokenizer, prompt), output) == expected
    searching = Detokenizer(tokenizer, prompt, ("never \0 there",))
    chunks = []
    for token_id in output:
        assert not searching.stops_after(token_id, armed=True)
        chunks.append(searching.release(final=False))
    assert "".join(chunks) + searching.release(final=True) == expected
    streaming = Detokenizer(tokenizer, prompt)
    chunks = []
    for number, token_id in enumerate(output):
        streaming.add([token_id])
        chunks.append(streaming.release(final=number == len(output) - 1))
    assert "".join(chunks) == expected


@settings(max_examples=200, deadline=None)
@given(PROMPTS, st.lists(st.integers(0, 299), max_size=24))
def test_byte_level_tokens_give_the_text_that_they_give_at_once(
    prompt: str, output: list[int]
) -> None:
    """Any tokens, invalid bytes included."""
    tokenizer = TOKENIZERS["byte-level"]
    assert_like_at_once(tokenizer, tokenizer(prompt).input_ids, output)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=9), st.lists(PIECES, max_size=16))
def test_sentence_pieces_give_the_text_that_they_give_at_once(
    prompt: list[str], output: list[str]
) -> None:
    assert_like_at_once(
        TOKENIZERS["sentence-piece"], sentence_piece_ids(*prompt), sentence_piece_ids(*output)
    )


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="aé—你🙂👩‍👩‍👧 sSTOP", max_size=30))
def test_text_so_far_is_always_whole_characters(text: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    output = tokenizer(text).input_ids
    detokenizer = Detokenizer(tokenizer, tokenizer("the cat").input_ids, ("\0",))
    told = ""
    for token_id in output:
        detokenizer.stops_after(token_id, armed=True)
        told += detokenizer.release(final=False)
        assert REPLACEMENT not in told
        assert text.startswith(told)
    assert told + detokenizer.release(final=True) == text


def stopped(
    tokenizer: Any, output: list[int], stop_words: tuple[str, ...], min_tokens: int = 0
) -> tuple[int, str]:
    """The number of tokens that were taken, and the text, which is told token by token."""
    detokenizer, told = Detokenizer(tokenizer, [], stop_words), ""
    for count, token_id in enumerate(output, start=1):
        if detokenizer.stops_after(token_id, armed=count >= min_tokens):
            return count, told + detokenizer.release(final=True)
        told += detokenizer.release(final=False)
    return len(output), told + detokenizer.release(final=True)


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="ab é🙂", max_size=20),
    st.lists(st.text(alphabet="ab é🙂", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_text_ends_before_the_first_stop_word(text: str, stop_words: list[str]) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    output = tokenizer(text).input_ids
    count, got = stopped(tokenizer, output, tuple(stop_words))
    taken = decode(tokenizer, output[:count])
    starts = [taken.find(word) for word in stop_words if word in taken]
    assert got == (taken[: min(starts)] if starts else text)
    for fewer in range(count):
        earlier = decode(tokenizer, output[:fewer])
        waits = earlier.endswith(REPLACEMENT)  # for the rest of a character
        assert waits or not any(word in earlier for word in stop_words)
    if not starts:
        assert count == len(output)


def test_a_stop_word_across_tokens_is_found() -> None:
    tokenizer = TOKENIZERS["sentence-piece"]
    output = ids_of(tokenizer, "▁the", "▁cat", "▁ST", "OP", "s", "a")
    assert stopped(tokenizer, output, ("STOP",)) == (4, "the cat ")
    assert stopped(tokenizer, output, ("t STO",)) == (4, "the ca")
    assert stopped(tokenizer, output, ("none", "STOPs", "cat ST")) == (3, "the ")
    assert stopped(tokenizer, output, ("STOP", "TOP", "OP")) == (4, "the cat ")  # the first of them
    smile = sentence_piece_ids("a", "🙂", "b")
    assert stopped(tokenizer, smile, ("🙂",)) == (5, "a")  # with its last byte


@pytest.mark.parametrize(
    "pieces, stop_words, min_tokens, expected",
    [
        (("a", "STOP", "b", "s", "STOP", "a"), ("STOP",), 3, (5, "aSTOPbs")),
        (("a", "b", "s", "s"), ("a", "much longer"), 2, (4, "abss")),
        (("a", "▁ST", "OP", "s"), ("STOP",), 3, (3, "a ")),  # it reaches over min_tokens
    ],
)
def test_stop_words_before_min_tokens_are_let_through(
    pieces: tuple[str, ...],
    stop_words: tuple[str, ...],
    min_tokens: int,
    expected: tuple[int, str],
) -> None:
    tokenizer = TOKENIZERS["sentence-piece"]
    output = ids_of(tokenizer, *pieces)
    assert stopped(tokenizer, output, stop_words, min_tokens=min_tokens) == expected


def test_special_tokens_are_left_out() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    end = tokenizer.eos_token_id
    output = [*tokenizer("cat").input_ids, end, *tokenizer(" dog").input_ids]
    assert text_of(Detokenizer(tokenizer, [end]), output) == "cat dog"
    assert stopped(tokenizer, output, ("\0",))[1] == "cat dog"
    keeping = Detokenizer(tokenizer, [end], kept_token_ids=frozenset([end]))
    assert text_of(keeping, output) == "cat<end> dog"


@pytest.mark.parametrize("stop_words", [(), ("never said",)])
@pytest.mark.parametrize(
    "shows_special, includes, is_asked, kept",
    [
        (False, False, True, False),
        (True, False, True, False),
        (False, True, True, True),
        (False, False, False, False),
        (False, True, False, False),  # an end of the model's own
        (True, True, False, True),
    ],
)
def test_the_token_that_ends_a_text_is_no_part_of_it_though_it_is_not_special(
    shows_special: bool, includes: bool, is_asked: bool, kept: bool, stop_words: tuple[str, ...]
) -> None:
    tokenizer = byte_level()
    *begin, end = tokenizer("the cat").input_ids
    detokenizer = Detokenizer(tokenizer, [], stop_words, shows_special_tokens=shows_special)
    params = SamplingParams(
        9,
        stop_words=stop_words,
        include_stop_word=includes,
        stop_token_ids=(end,) if is_asked else (),
    )
    sequence = Sequence([1], params, Caller(lambda _: None), detokenizer)
    for token_id in (*begin, end):
        sequence.append(token_id, frozenset([] if is_asked else [end]))
    expected = [*begin, end] if kept else begin
    assert sequence.update().read_text() == tokenizer.decode(expected)


def test_special_tokens_are_shown_where_they_are_asked_for_but_the_one_that_ends() -> None:
    tokenizer = byte_level()
    end = tokenizer.eos_token_id
    token_ids = [*tokenizer("the").input_ids, end, *tokenizer(" cat").input_ids, end]
    for shown, kept, text in (
        (False, False, "the cat"),
        (True, False, "the<end> cat"),
        (True, True, "the<end> cat<end>"),
    ):
        detokenizer = Detokenizer(tokenizer, [], shows_special_tokens=shown)
        params = SamplingParams(9, min_tokens=len(token_ids), include_stop_word=kept)
        sequence = Sequence([1], params, Caller(lambda _: None), detokenizer)
        for token_id in token_ids:
            sequence.append(token_id, frozenset([end]))
        assert sequence.finish_reason == "stop"
        assert sequence.update().read_text() == text
