"""Scenarios: chats, which the model's own template renders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scenarios.endpoint import Model, joined
from tests.scenarios.reference import Reference

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "What is the capital of Germany?"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How are you?"},
        {"role": "user", "content": "Zoë: 日本 🙂"},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]


class Chat:
    """``model`` is served from weights that have a chat template."""

    @pytest.mark.parametrize("messages", CHATS, ids=["one turn", "three turns"])
    def test_a_chat_is_the_templates_text_continued(
        self, model: Model, reference: Reference, messages: list[dict[str, Any]]
    ) -> None:
        prompt = reference.rendered(messages)
        expected = reference.answer(prompt, 12, is_chat=True)
        options = {"messages": json.dumps(messages), "max_tokens": 12}

        reply = model.infer(model.by_tensors(None, return_num_input_tokens=True, **options))

        assert reply.ok, reply.error
        assert reply.text() == expected.text
        assert reply.number("num_input_tokens") == expected.num_input_tokens

    def test_a_chat_streams_and_may_come_as_flat_json(
        self, model: Model, reference: Reference
    ) -> None:
        expected = reference.answer(reference.rendered(CHATS[0]), 12, is_chat=True).text
        options = {"messages": json.dumps(CHATS[0]), "max_tokens": 12}

        assert joined(model.engine.stream(None, **options)) == expected
        assert model.generate(options)[1]["text_output"] == expected

    def test_a_template_is_told_of_tools(self, model: Model) -> None:
        options = {"messages": json.dumps(CHATS[0]), "tools": json.dumps(TOOLS)}

        reply = model.infer(
            model.by_tensors(None, max_tokens=4, exclude_input_in_output=False, **options)
        )

        assert reply.ok, reply.error
        assert "\nnow()" in reply.text()

    @pytest.mark.parametrize("messages", ['[{"role": "user"}]', "[" * 5000], ids=["", "deep"])
    def test_broken_messages_are_a_400(self, model: Model, messages: str) -> None:
        reply = model.infer(model.by_tensors(None, messages=messages, max_tokens=4))

        assert reply.status == 400, reply
        assert reply.error.startswith("messages")
