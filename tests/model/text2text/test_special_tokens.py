"""Texts are framed by hand as their tokenizers frame them, in every source language, whichever
thread reads them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_triton.runtime.errors import LoadError
from hf_triton.text2text_generation.source import (
    Encode,
    Languages,
    SpecialTokens,
    source_encoder,
    special_tokens_of,
)
from hf_triton.text_generation.sequence.sequence import DecoderStart
from tests.model.text2text.conftest import Folders, References
from tests.support.text2text.reference import Reference
from tests.support.text2text.tiny_translators import FAMILIES, texts

pytestmark = pytest.mark.filterwarnings("ignore:Recommended")  # sacremoses, by Marian's tokenizer


def encoder(tokenizer: Any, max_length: int) -> Encode:
    return source_encoder(tokenizer, max_length=max_length, vocab_size=10_000)


@pytest.mark.parametrize("family", FAMILIES)
def test_framed_and_cut_texts_are_the_tokenizers_own(family: str, folders: Folders) -> None:
    tokenizer = Reference(folders(family)).tokenizer  # its language is changed here
    languages = [None]
    if hasattr(tokenizer, "src_lang"):
        codes = getattr(tokenizer, "lang_code_to_id", ()) or ("eng_Latn", "fra_Latn")
        languages = list(codes)[:3]
    for language in languages:
        if language is not None:
            tokenizer.src_lang = language
        special_tokens = special_tokens_of(tokenizer)
        for text in texts():
            for length in (4, 9, 200):
                expected = tokenizer(text, truncation=True, max_length=length).input_ids
                assert encoder(tokenizer, length)(text, special_tokens, truncate=True) == expected


def test_a_tokenizer_that_cuts_on_the_left_keeps_the_end(references: References) -> None:
    tokenizer = references("bart").tokenizer
    special_tokens, own_side = special_tokens_of(tokenizer), tokenizer.truncation_side
    tokenizer.truncation_side = "left"
    try:
        expected = tokenizer(texts()[3], truncation=True, max_length=8).input_ids
        assert encoder(tokenizer, 8)(texts()[3], special_tokens, truncate=True) == expected
    finally:
        tokenizer.truncation_side = own_side


def test_special_tokens_that_change_the_text_are_a_load_error() -> None:
    class Odd:
        def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any:
            return type("Encoded", (), {"input_ids": [1, 9, 2] if add_special_tokens else [1, 2]})

    with pytest.raises(LoadError, match="can't be distinguished from"):
        special_tokens_of(Odd())
    assert SpecialTokens((1,), (2, 3)).around([7]) == [1, 7, 2, 3]


def test_a_threads_language_and_length_are_not_anothers(folders: Folders) -> None:
    tokenizer = Reference(folders("mbart50")).tokenizer
    languages = Languages(
        tokenizer, DecoderStart(2), is_forced=False, source_lang=None, target_lang=None
    )
    found_by = encoder(tokenizer, 9)
    codes = list(languages.special_tokens_by_source)[:8]
    asked = [(text, code) for code in codes for text in texts()]

    def encode(one: tuple[str, str]) -> list[int]:
        text, code = one
        assert tokenizer.decode([5, 6, 7])
        return found_by(text, languages.special_tokens_for(code), truncate=True)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(encode, asked * 20))
    for (text, code), token_ids in zip(asked, found, strict=False):
        tokenizer.src_lang = code
        assert token_ids == tokenizer(text, truncation=True, max_length=9).input_ids
    assert found == found[: len(asked)] * 20
