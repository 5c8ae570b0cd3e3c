"""A text that is cut before it is tokenised has the first tokens of the whole."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers, trainers

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing.lengths import (
    check_characters,
    most_characters,
    num_characters,
    tokens_of_part,
)
from tests.support.other_tokenizers import KINDS as OTHERS
from tests.support.tiny_encoders import WORDS, texts, tiny_tokenizer


def without_words() -> tokenizers.Tokenizer:
    """Llama 2's kind: a space is a letter like others, and the merges find the words."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    made.train_from_iterator(
        texts(300), trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    made.pre_tokenizer = None
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return made


KINDS = {**OTHERS, "without words": without_words}


def tokenizer_of(kind: str) -> tokenizers.Tokenizer:
    found = KINDS[kind]() if kind in KINDS else tiny_tokenizer(kind).backend_tokenizer
    found.no_truncation()
    found.no_padding()
    return found


def mixed_text(draw: random.Random, size: int) -> str:
    """Words, numbers, lines, other scripts, runs of one letter, and what normalisers change."""
    kinds = (
        lambda: draw.choice(WORDS),
        lambda: draw.choice(WORDS).title() + draw.choice(",.;!?"),
        lambda: str(draw.randrange(10**6)),
        lambda: "\n" * draw.randint(1, 3),
        lambda: " " * draw.randint(1, 40),
        lambda: "".join(draw.choices("漢字仮名交文。、", k=draw.randint(1, 30))),
        lambda: draw.choice("aäeé\u0301ﬁΣ") * draw.randint(1, 30),
        lambda: draw.choice(("e\u0301", "ﷺ", "🙂", "\u200b", "ǅ", "<s>", "</s>")),
    )
    found, length = [], 0
    while length < size:
        found.append(draw.choice(kinds)())
        length += len(found[-1]) + 1
    return " ".join(found)


@pytest.mark.threat("huge-input")
@pytest.mark.parametrize("kind", ["bert", "roberta", *KINDS])
@pytest.mark.parametrize("keeps_end", [False, True], ids=["first", "last"])
def test_a_part_has_the_tokens_of_the_whole(kind: str, keeps_end: bool) -> None:
    tokenizer, draw = tokenizer_of(kind), random.Random(5)

    def ids(text: str) -> Sequence[int]:
        found: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    was_cut = 0
    for _ in range(25):
        text, num = mixed_text(draw, draw.randint(1, 8000)), draw.randint(1, 200)
        whole, part = ids(text), tokens_of_part("f", text, num, ids, keeps_end=keeps_end)
        was_cut += len(part) < len(whole)
        kept = slice(-num, None) if keeps_end else slice(num)
        assert part[kept] == whole[kept], text
    assert was_cut > 8


@pytest.mark.threat("huge-input")
def test_of_a_long_text_no_more_is_tokenised_than_is_needed() -> None:
    read: list[int] = []

    def tokenize(text: str) -> str:
        read.append(len(text))
        return text[::4]

    text = "cat " * 10_000_000
    assert len(tokens_of_part("f", text, 500, tokenize)) >= 500
    assert sum(read) < 20_000


def test_a_text_without_tokens_where_they_would_be_is_refused() -> None:
    expected = "^f: got 40000000 characters, allowed: at most 65536 where 500 tokens fit$"
    with pytest.raises(RequestError, match=expected):
        tokens_of_part("f", " " * 40_000_000, 500, str.split)


@pytest.mark.threat("huge-input")
def test_what_is_far_too_long_is_refused_with_what_else_can_be_sent() -> None:
    check_characters("f", most_characters(10_000), 10_000)
    expected = "^f: got 160001 characters, allowed: at most 160000 where 10000 tokens fit; cut it$"
    with pytest.raises(RequestError, match=expected):
        check_characters("f", most_characters(10_000) + 1, 10_000, "cut it")


def test_all_texts_of_a_value_count() -> None:
    assert num_characters({"ab": ["cde", {"f": ("gh", 1, None)}]}) == 8
