"""Scenarios: ``/generate``, which takes flat JSON and answers in flat JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Reference

PROMPT = "I am going"
FLAGS = {
    "return_finish_reason": True,
    "return_num_input_tokens": True,
    "return_num_output_tokens": True,
}


def answered(model: Model, body: dict[str, Any] | bytes) -> dict[str, Any]:
    status, answer = model.generate(body)
    assert status == 200, answer
    return answer


class FlatJson:
    """``model`` is each of the served models."""

    @pytest.mark.parametrize("nested", [False, True], ids=["top level", "in parameters"])
    def test_options_are_taken_at_either_level(
        self, model: Model, reference: Reference, nested: bool
    ) -> None:
        options = {"max_tokens": 7, "temperature": 0, "exclude_input_in_output": False, **FLAGS}
        body = {"parameters": options} if nested else options

        answer = answered(model, {"text_input": PROMPT, **body})

        assert answer["text_output"] == PROMPT + reference.text(PROMPT, 7)
        assert answer["finish_reason"] == "length"
        assert answer["num_input_tokens"] == reference.num_tokens(PROMPT)
        assert answer["num_output_tokens"] == 7

    def test_the_shortest_request_gets_a_text_alone(
        self, model: Model, reference: Reference
    ) -> None:
        prompt = reference.prompt_that_ends(120)
        answer = answered(model, {"text_input": prompt})

        assert answer["text_output"] == reference.text(prompt, 120)
        assert set(answer) == {"model_name", "model_version", "text_output"}

    def test_lists_what_clients_add_and_text_outside_ascii_are_taken(
        self, model: Model, reference: Reference
    ) -> None:
        prompt = 'Zoë: "日本\\n" 🙂\n'
        body = {"id": "7", "text_input": [prompt], "max_tokens": [5], "stream": False}
        for ascii_alone in (True, False):
            sent = json.dumps(body, ensure_ascii=ascii_alone).encode()
            assert answered(model, sent)["text_output"] == reference.text(prompt, 5)

    @pytest.mark.parametrize(
        "body, field",
        [
            (b'{"max_tokens": 3}', "text_input"),
            (b"{}", ""),  # in a batch Triton's own words: it has no number of rows
            (b'{"text_input": "caf\xc3("}', "text_input"),
            (b'{"text_input": "a", "max_tokens": 2147483648}', "max_tokens"),
            (b'{"text_input": "a", "temperature": NaN}', "temperature"),
            (b'{"text_input": "a", "max_new_tokens": 5}', "max_new_tokens"),
            (b'{"text_input": "a", "foo": {"bar": 1}}', "foo"),
            (b'{"text_input": "a", "max_tokens": 1, "max_tokens": 1}', "max_tokens"),
        ],
    )
    def test_a_bad_request_is_a_400_that_names_its_field(
        self, model: Model, reference: Reference, body: bytes, field: str
    ) -> None:
        status, answer = model.generate(body)

        assert status == 400, answer
        assert field in answer["error"]
        good = {"text_input": PROMPT, "max_tokens": 3}
        assert answered(model, good)["text_output"] == reference.text(PROMPT, 3)

    @pytest.mark.parametrize("body", [b"{", b'{"text_input": "a", "max_tokens": "5"}'])
    def test_json_of_the_wrong_type_is_refused_by_triton_itself(
        self, model: Model, body: bytes
    ) -> None:
        """With status 500 up to 24.10: the model never sees it, so no better one can be given."""
        status, answer = model.generate(body)

        assert status in (400, 500), answer
        assert answer["error"]
