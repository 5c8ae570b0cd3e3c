"""The demo models are the files that their README describes, and answer what it says."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

DEMO = Path(__file__).parents[3] / "demo"
SUMS = [line.split("  ") for line in (DEMO / "SHA256SUMS").read_text().splitlines()]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def test_weights_are_those_that_were_made() -> None:
    assert {name for _, name in SUMS} == {
        str(path.relative_to(DEMO)) for path in DEMO.rglob("*.safetensors")
    }
    for digest, name in SUMS:
        assert hashlib.sha256((DEMO / name).read_bytes()).hexdigest() == digest, name


def test_every_file_is_small_and_readable_by_another_user() -> None:
    files = [path for path in DEMO.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 11_000_000
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in files)


@pytest.fixture(scope="module")
def chat() -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO / "model")

    def answer(text: str, tools: list[Any] | None = None) -> str:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            tools=tools,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=80)
        found: str = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
        return found

    return answer


@pytest.mark.parametrize("text, tools, answer", [
    ("Hello", None, "Hello! How can I help you?"),
    ("Hello, how are you?", None, "I am fine, thank you. And you?"),
    ("What is the weather in Paris?", [WEATHER], CALL),
])  # fmt: skip
def test_language_model_answers_and_ends_its_turn(
    chat: Any, text: str, tools: list[Any] | None, answer: str
) -> None:
    assert chat(text, tools) == answer + "<|im_end|>"
