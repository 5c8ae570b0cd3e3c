"""Scenarios: requests that name whom they may share prefixes with."""

from __future__ import annotations

import json

from tests.scenarios.endpoint import Model

QUESTION = "What is the capital of Germany?"


class CacheSalts:
    """``cache_salt``, on every engine."""

    def test_a_chat_and_a_stream_take_a_salt(self, model: Model) -> None:
        asked = {"max_tokens": 3, "cache_salt": "a salt"}
        messages = json.dumps([{"role": "user", "content": QUESTION}])
        for status, body in (
            model.generate({"messages": messages, **asked}),
            model.engine.generate_stream({"text_input": QUESTION, "stream": True, **asked}),
        ):
            assert status == 200, body
