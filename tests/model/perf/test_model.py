"""The measured model is the size it says, and its words are its tokens."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer

from perf.load.requests import requests
from perf.model import llama_config, write_tokenizer


def test_prompts_have_as_many_tokens_as_words_and_come_back_unchanged(tmp_path: Path) -> None:
    llama_config().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for prompt, _ in islice(requests(0), 20):
        token_ids = tokenizer(prompt).input_ids
        assert len(token_ids) == len(prompt.split())
        assert str(tokenizer.decode(token_ids)).strip() == prompt


def test_no_token_ends_an_answer() -> None:
    assert llama_config().eos_token_id is None
