"""Scenarios: what a good request answers, with every option as a tensor and as a parameter."""

from __future__ import annotations

import pytest

from tests.scenarios.endpoint import OUTPUTS, Model
from tests.scenarios.reference import Reference

PROMPT = "I am going"


@pytest.mark.parametrize("how", ["tensors", "parameters"])
class Answers:
    """``model`` is each of the served models, ``how`` the way its options are given."""

    def test_an_answer_is_what_generate_makes(
        self, model: Model, reference: Reference, how: str
    ) -> None:
        for prompt in (PROMPT, "Once", "What is the capital of Germany?", "Zoë said: 日本 🙂"):
            reply = model.ask(how, prompt, max_tokens=12)

            assert reply.ok, reply.error
            assert reply.text() == reference.text(prompt, 12)
            assert list(reply.outputs) == ["text_output"]
            assert reply.outputs["text_output"].shape == ((1, 1) if model.batched else (1,))

    def test_flags_add_the_outputs_they_name_and_a_list_names_all(
        self, model: Model, how: str
    ) -> None:
        for name in OUTPUTS[1:]:
            reply = model.ask(how, PROMPT, max_tokens=5, **{f"return_{name}": True})
            assert set(reply.outputs) == {"text_output", name}

        reply = model.ask(how, PROMPT, "finish_reason", "num_output_tokens", max_tokens=3)
        assert set(reply.outputs) == {"finish_reason", "num_output_tokens"}
        assert reply.number("num_output_tokens") == 3

    def test_requests_at_the_same_time_get_each_its_own_answer(
        self, model: Model, reference: Reference, how: str
    ) -> None:
        asked = [(f"{PROMPT} {'on and ' * (n % 5)}{n}", 1 + 5 * (n % 4)) for n in range(12)]

        replies = model.infer_together(
            [model.request(how, prompt, max_tokens=length) for prompt, length in asked]
        )

        assert [reply.text() for reply in replies] == [
            reference.text(prompt, length) for prompt, length in asked
        ]
