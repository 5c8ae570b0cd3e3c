"""``/tokenize`` and ``/detokenize``: what Triton is asked for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.openai_api.conftest import Translator

CHAT = [{"role": "user", "content": "a bcd"}]


def asked(api: Translator) -> tuple[dict[str, Any], dict[str, Any]]:
    """The last question, and what was sent beside it."""
    seen = dict(api.triton.seen[-1])
    del seen["sampling_parameters"]
    return json.loads(seen.pop("tokenizer")), seen


@pytest.mark.parametrize("model", ["echo", "whole", "batched", "translator"])
def test_a_prompts_tokens_are_those_that_the_model_tells(model: str, api: Translator) -> None:
    reply = api.post("/tokenize", model=model, prompt="a bcd", add_special_tokens=False)
    told = {"count": 2, "max_model_len": 99, "tokens": [1, 3], "token_strs": None}
    assert (reply.status, reply.body) == (200, told)
    question, seen = asked(api)
    assert question == {"ask": "tokenize", "add_special_tokens": False}
    assert seen.pop("model").removesuffix("_stream") == model
    assert seen == {"text_input": "a bcd"}


def test_a_chats_tokens_are_those_of_its_template(api: Translator) -> None:
    body = {"add_generation_prompt": False, "return_token_strs": True}
    reply = api.post("/tokenize", model="echo", messages=CHAT, **body)
    assert (reply.status, reply.body["count"]) == (200, 2)
    question, seen = asked(api)
    assert question == {"ask": "tokenize", "return_token_strs": True}
    assert json.loads(seen["messages"]) == CHAT
    assert json.loads(seen["chat_template_kwargs"]) == {"add_generation_prompt": False}


def test_tokens_are_sent_as_they_are(api: Translator) -> None:
    assert api.post("/detokenize", model="echo", tokens=[5, 6]).body == {"prompt": "[5, 6]"}
    assert asked(api)[0] == {"ask": "detokenize"}


def test_without_a_name_it_is_the_only_model(api: Translator) -> None:
    for name in ("batched", "batched_stream", "translator", "whole"):
        del api.triton.models[name]
    assert api.post("/tokenize", prompt="a b").body["count"] == 2
