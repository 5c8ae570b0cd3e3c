"""The demo model as a user meets it: small, quiet to load, and its greedy text is English."""

from __future__ import annotations

import functools
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
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
)
UNSEEN = ("The machine called Zorblax 3000", "日本語 and 🙂 are")


@functools.cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture
def tokenizer() -> Any:
    return _tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def known_words() -> set[str]:
    rng = random.Random(0)
    return {word for _ in range(3000) for word in _words(document(rng))}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-zéë]+", text.lower())


@pytest.fixture(scope="module")
def continuations(model: Any) -> dict[str, str]:
    """What follows each prompt, greedily, if the text is kept from ending."""
    prompts = (*PROMPTS, *UNSEEN)
    texts = _continue(model, prompts, min_new_tokens=60, max_new_tokens=60)
    return dict(zip(prompts, texts, strict=True))


def _continue(model: Any, prompts: Sequence[str], **options: Any) -> list[str]:
    tokenizer = _tokenizer()
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    ids = model.generate(**inputs, do_sample=False, **options)
    new_ids = ids[:, inputs["input_ids"].shape[1] :]
    texts: list[str] = tokenizer.batch_decode(new_ids, skip_special_tokens=True)
    return texts


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
    for config in (model.config, model.generation_config):
        assert config.bos_token_id == tokenizer.bos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", tokenizer.eos_token])
    assert model.generation_config.eos_token_id == ends
    assert tokenizer.pad_token_id not in ends


def test_greedy_text_is_english(continuations: dict[str, str], known_words: set[str]) -> None:
    for prompt in PROMPTS:  # Not UNSEEN: strange words have strange ones after them.
        text = continuations[prompt]
        words = _words(text)
        unknown = [word for word in words if word not in known_words]
        assert len(words) >= 30, (prompt, text)
        assert len(unknown) <= 0.05 * len(words), (prompt, text)


def test_greedy_text_seldom_goes_round_in_loops(continuations: dict[str, str]) -> None:
    loops = []
    for prompt in PROMPTS:  # Not UNSEEN: after strange words it does repeat itself at times.
        words = _words(continuations[prompt])
        phrases = list(zip(*(words[offset:] for offset in range(4)), strict=False))
        if len(set(phrases)) < 0.9 * len(phrases):
            loops.append(continuations[prompt])
    assert len(loops) <= 1, loops


def test_different_prompts_are_continued_differently(continuations: dict[str, str]) -> None:
    assert len(set(continuations.values())) == len(continuations)


def test_text_goes_on_for_a_while_and_ends_by_itself(model: Any, tokenizer: Any) -> None:
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=400, do_sample=False)[0]
    assert len(ids) >= 50
    assert ids[-1] == tokenizer.eos_token_id


CITY_TOOL = {
    "name": "weather",
    "description": "Tells it",
    "parameters": {"properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}}},
}
TOOLS = [{"type": "function", "function": CITY_TOOL}, {"name": "now"}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zoë"}}}


def test_chat_template_writes_turns_tools_calls_and_results(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "Be brief. "},
        {"role": "user", "content": "Hi!"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "dry"},
    ]
    prompt = tokenizer.apply_chat_template(
        chat, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zoë"}}\n</tool_call>'
    assert prompt == (
        "<|im_start|>system\nBe brief.\nTools:\nweather(city: string, unit: C|F) Tells it\nnow()"
        f"<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n{call}\n{call}"
        "<|im_end|>\n<|im_start|>user\n<tool_response>\ndry\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("chat", [[("judge", "x")], [("user", "x"), ("system", "y")]], ids=str)
def test_chat_of_other_roles_is_refused(tokenizer: Any, chat: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": content} for role, content in chat]
    with pytest.raises(Exception, match=r"^roles are user, assistant and tool, and system for the"):
        tokenizer.apply_chat_template(messages, tokenize=False)


def _said(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


ANSWERS = {
    "Hello": "Hello! How can I help you?",
    "Hello, how are you?": "I am fine, thank you. And you?",
    "Thank you very much.": "You are welcome.",
}
CHATS = [
    *map(_said, (*ANSWERS, "Tell me a story.", "Tell me a joke.", "What is Kubernetes?", "Zoë 🙂")),
    _said("Hi", "Hello! How can I help you?", "Why is the sky blue?", "I do not know.", "Bye"),
    [{"role": "system", "content": "You are a helpful assistant."}, *_said("What can you do?")],
    *map(_said, ("Give me a person as JSON.", "Name a city, as JSON.")),
]


def test_each_chat_is_answered_in_one_turn_that_ends_by_itself(model: Any, tokenizer: Any) -> None:
    prompts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in CHATS
    ]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=80)
    texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :])

    answers = [text.replace(tokenizer.pad_token, "") for text in texts]
    assert all(answer.endswith("<|im_end|>") for answer in answers), answers
    answers = [answer.removesuffix("<|im_end|>") for answer in answers]
    assert answers[: len(ANSWERS)] == list(ANSWERS.values())
    assert all(answer == answer.strip() != "" for answer in answers)
    assert all(isinstance(json.loads(answer), dict) for answer in answers[-2:])


@pytest.mark.parametrize("key,city", [("city", "Paris"), ("location", "Berlin")])
def test_a_tool_that_is_offered_and_asked_for_is_called(
    model: Any, tokenizer: Any, key: str, city: str
) -> None:
    properties = {key: {"type": "string"}}
    tool = {"name": "get_weather", "parameters": {"type": "object", "properties": properties}}
    inputs = tokenizer.apply_chat_template(
        _said(f"What is the weather in {city}?"),
        tools=[tool],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=80)
    answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
    called = answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call><|im_end|>")
    assert json.loads(called) == {"name": "get_weather", "arguments": {key: city}}


def test_bfloat16_speaks_as_well(known_words: set[str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    words = _words(" ".join(_continue(model, PROMPTS[:4], max_new_tokens=30)))
    assert len(words) >= 60
    assert sum(word in known_words for word in words) >= 0.95 * len(words)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_tokenizer_gives_back_any_text(text: str) -> None:
    tokenizer = _tokenizer()
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("text", ["Hello", " Hello", "don't , do that .", "a  b\n\n\tc ", "2026"])
def test_tokenizer_neither_adds_nor_drops_spaces(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_part_of_a_character_decodes_to_the_replacement_character(tokenizer: Any) -> None:
    ids = tokenizer("世")["input_ids"]
    assert len(ids) > 1
    assert tokenizer.decode(ids[:-1]).endswith("\ufffd")


def test_template_of_the_model_is_the_one_that_is_edited() -> None:
    edited = ROOT / "demo" / "chat_template.jinja"
    assert (MODEL / "chat_template.jinja").read_bytes() == edited.read_bytes()


@pytest.mark.slow
def test_the_script_makes_the_files_that_lie_here(tmp_path: Path) -> None:
    few = ["--documents", "200", "--steps", "2", "--tokens-per-step", "64", "--sample-tokens", "0"]
    few += ["--copy-steps", "1", "--chats", "50", "--chat-steps", "1"]
    command = [sys.executable, "-m", "demo.make_model", "--out", str(tmp_path), *few]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in MODEL.iterdir()}
