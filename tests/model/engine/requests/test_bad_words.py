"""Words become the token sequences that spell them, whatever the tokenizer does with spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_triton.text_generation.generation_loading import word_tokenizer

DEMO = Path(__file__).parents[4] / "demo" / "model"
PIECES = ["<unk>", "▁", *"acts", "\n", "ca", "cat", "▁cat"]
SPACE, CAT, SPACE_CAT = PIECES.index("▁"), PIECES.index("cat"), PIECES.index("▁cat")


def space_before_every_text() -> Any:
    """As Llama 2's tokenizer: it puts a space before every text, which decoding takes away."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    merges = [("c", "a"), ("ca", "t"), ("▁", "cat")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    replaced = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.normalizer = replaced
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_word_has_its_bare_spelling_where_texts_begin_with_a_space_of_the_tokenizers() -> None:
    spellings = word_tokenizer(space_before_every_text())("cat")
    assert sorted(spellings) == sorted([(CAT,), (SPACE_CAT,), (SPACE, SPACE_CAT)])


@pytest.mark.parametrize("word", ["cat", " cat", "bread and butter", "Grüße", "\n\n", "x" * 50])
def test_each_spelling_decodes_to_the_word_with_or_without_a_space(word: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    spellings = word_tokenizer(tokenizer)(word)
    texts = {tokenizer.decode(list(ids)) for ids in spellings}
    assert texts == {word.lstrip(" "), " " + word.lstrip(" ")}
    assert len(spellings) == len(set(spellings))
