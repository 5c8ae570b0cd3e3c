"""The demo model as a user meets it: small, quiet to load, and its greedy text is English."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.corpus.documents import document

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demo" / "model"
PROMPTS = (
    "I am going",
    "How can you be",
    "Once upon a time",
    "The old man",
    "What is",
    "Hello",
    "My name is",
    "In the morning",
    "There is",
    "We were",
    "The machine called Zorblax 3000",
    "日本語 and 🙂 are",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def known_words() -> set[str]:
    rng = random.Random(0)
    return {word for _ in range(3000) for word in _words(document(rng))}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-zéë]+", text.lower())


def _continuation(model: Any, tokenizer: Any, prompt: str, **options: Any) -> str:
    inputs = tokenizer(prompt, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=60, do_sample=False, **options)[0]
    text: str = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


def test_whole_model_stays_under_eight_megabytes() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 8_000_000


def test_every_file_can_be_read_by_another_user() -> None:
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in MODEL.iterdir())


def test_config_uses_grouped_query_attention_and_a_context_of_1024(model: Any) -> None:
    config = model.config
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.max_position_embeddings == 1024
    assert model.dtype == torch.float32


def test_special_tokens_agree_between_tokenizer_and_model(model: Any, tokenizer: Any) -> None:
    for settings_ in (model.config, model.generation_config):
        assert settings_.bos_token_id == tokenizer.bos_token_id
        assert settings_.eos_token_id == tokenizer.eos_token_id
        assert settings_.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_english(
    model: Any, tokenizer: Any, known_words: set[str], prompt: str
) -> None:
    words = _words(_continuation(model, tokenizer, prompt, min_new_tokens=40))
    unknown = [word for word in words if word not in known_words]
    assert len(words) >= 25
    assert len(unknown) <= 0.05 * len(words), unknown


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_does_not_go_round_in_loops(model: Any, tokenizer: Any, prompt: str) -> None:
    words = _words(_continuation(model, tokenizer, prompt))
    phrases = list(itertools.pairwise(itertools.pairwise(itertools.pairwise(words))))
    assert len(set(phrases)) >= 0.9 * len(phrases)


def test_text_ends_by_itself(model: Any, tokenizer: Any) -> None:
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=600, do_sample=False)[0]
    assert ids[-1] == tokenizer.eos_token_id


def test_bfloat16_speaks_as_well(tokenizer: Any, known_words: set[str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    words = _words(_continuation(model, tokenizer, "The old man"))
    assert sum(word in known_words for word in words) >= 0.95 * len(words)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_tokenizer_gives_back_any_text(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def _tokenizer(cached: list[Any] = []) -> Any:  # noqa: B006
    if not cached:
        cached.append(AutoTokenizer.from_pretrained(MODEL))
    return cached[0]


@pytest.mark.parametrize("text", ["Hello", " Hello", "don't , do that .", "a  b\n\n\tc ", "2026"])
def test_tokenizer_neither_adds_nor_drops_spaces(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_part_of_a_character_decodes_to_the_replacement_character(tokenizer: Any) -> None:
    ids = tokenizer("世")["input_ids"]
    assert len(ids) > 1
    assert tokenizer.decode(ids[:-1]).endswith("\ufffd")


def test_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    runs = [_make_tiny(tmp_path / name, seed) for name, seed in (("first", "1"), ("second", "2"))]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    files = {path.name: path.read_bytes() for path in (tmp_path / "first").iterdir()}
    assert files.keys() == {path.name for path in MODEL.iterdir()}
    for name, content in files.items():
        assert (tmp_path / "second" / name).read_bytes() == content, name


def _make_tiny(folder: Path, hash_seed: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "demo.make_model", "--out", str(folder)]
    command += ["--documents", "200", "--steps", "2", "--tokens-per-step", "64"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
