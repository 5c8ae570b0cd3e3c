"""Scenarios: prompts that begin alike, as the turns of a chat do, answer as they would alone, and
share what was computed with those of their own salt alone.
"""

from __future__ import annotations

import json

import pytest

from tests.scenarios.endpoint import Model
from tests.scenarios.metrics import ReadMetric, settled
from tests.scenarios.reference import Reference
from tests.support.triton import eventually

SYSTEM = "You answer questions about towns in one short sentence, and say so when you don't know. "
QUESTIONS = ("What is the capital of Germany?", "Where is Rome?", "Where is Rome?")
REUSED = "hf_triton_reused_prompt_tokens_total"
LONG = SYSTEM * 12
# Of so many prompts that share LONG, 289 tokens, each adds 1,024 to REUSED with a chance of 28 %.
ENOUGH = 60
FEW = 12


class SharedPrefixes:
    """``read_metric`` gives one number of ``model`` by its name."""

    @pytest.mark.threat("shared-prefix-timing")
    def test_a_shared_beginning_of_another_salt_is_computed_anew(
        self, model: Model, reference: Reference, read_metric: ReadMetric
    ) -> None:
        before = settled(lambda: read_metric(REUSED), model.settled_s)
        prompt = LONG + QUESTIONS[0]
        salts = [{"cache_salt": f"salt {number}"} for number in range(FEW)]
        callers = [{"hf-triton-caller": salt["cache_salt"], **salt} for salt in salts]
        for salt in (*salts, *callers):
            reply = model.ask("parameters", prompt, **{"max_tokens": 1, **salt})
            assert reply.ok, reply.error
            assert reply.text() == reference.text(prompt, 1)
        assert settled(lambda: read_metric(REUSED), model.settled_s) == before

        for _ in range(ENOUGH):
            assert model.ask("parameters", prompt, **{"max_tokens": 1, **salts[-1]}).ok
        assert eventually(lambda: read_metric(REUSED) > before)


class CacheSalts:
    """``cache_salt``, on every engine."""

    def test_a_chat_and_a_stream_take_a_salt(self, model: Model) -> None:
        asked = {"max_tokens": 3, "cache_salt": "a salt"}
        messages = json.dumps([{"role": "user", "content": QUESTIONS[0]}])
        for status, body in (
            model.generate({"messages": messages, **asked}),
            model.engine.generate_stream({"text_input": QUESTIONS[0], "stream": True, **asked}),
        ):
            assert status == 200, body
