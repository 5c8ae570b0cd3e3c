"""Requests that several threads read at once, in many languages, cut and whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hf_triton.text2text_generation.languages import find_languages
from hf_triton.text2text_generation.source import SourceTokenizer
from hf_triton.text_generation.sequence.sequence import DecoderStart
from tests.model.text2text.conftest import Folders
from tests.support.text2text.reference import Reference
from tests.support.text2text.tiny_translators import texts


def test_a_threads_language_and_length_are_not_anothers(folders: Folders) -> None:
    tokenizer = Reference(folders("mbart50")).tokenizer
    languages = find_languages(
        tokenizer, DecoderStart(2), is_forced=False, source_lang=None, target_lang=None
    )
    source = SourceTokenizer(
        tokenizer, max_length=9, vocab_size=1000, count_unknown=lambda number: None
    )
    codes = list(languages.special_tokens_by_source)[:8]
    asked = [(text, code) for code in codes for text in texts()] * 20

    def encode(one: tuple[str, str]) -> list[int]:
        text, code = one
        assert tokenizer.decode([5, 6, 7])
        return source.encode(text, languages.special_tokens_for(code), truncate=True)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(encode, asked))
    for (text, code), token_ids in zip(asked[:48], found, strict=False):
        tokenizer.src_lang = code
        assert token_ids == tokenizer(text, truncation=True, max_length=9).input_ids
    assert found == found[:48] * 20
