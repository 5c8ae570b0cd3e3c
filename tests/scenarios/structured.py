"""Scenarios: outputs that are held to a JSON schema, a regular expression, or a list of choices."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.scenarios.endpoint import FLAGS, Model, joined, rows
from tests.scenarios.reference import Reference

PROMPT = "I am going"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [7, 8]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3]\d"
CHOICES = ["north", "south", "south-west"]


def fits_schema(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["name", "age"] and value["age"] in (7, 8) and len(value["name"]) <= 12


class Structured:
    """``model`` is the demo model, which would not write such texts by itself."""

    @pytest.mark.parametrize("how", ["tensors", "parameters"])
    def test_an_output_fits_its_schema_or_its_expression(self, model: Model, how: str) -> None:
        for held, fits in (
            ({"json_schema": json.dumps(SCHEMA)}, fits_schema),
            ({"regex": DATE}, re.compile(DATE).fullmatch),
        ):
            reply = model.ask(how, PROMPT, **held, max_tokens=80, temperature=1.5, seed=3, **FLAGS)

            assert reply.ok, reply.error
            assert fits(reply.text()), reply.text()
            assert reply.texts("finish_reason") == ["stop"]

    def test_an_output_is_one_of_its_choices(self, model: Model) -> None:
        options = {"max_tokens": 40, "n": 4, "temperature": 1.5, "seed": 1}
        reply = model.ask("tensors", PROMPT, choice=CHOICES, **options)

        assert reply.ok, reply.error
        assert set(reply.texts()) <= set(CHOICES)

    @pytest.mark.parametrize(
        "sampling, fits",
        [
            ({"json_schema": SCHEMA}, fits_schema),
            ({"guided_json": SCHEMA}, fits_schema),
            ({"structured_outputs": {"json_object": True}}, json.loads),
            ({"structured_outputs": {"regex": DATE}}, re.compile(DATE).fullmatch),
            ({"guided_choice": CHOICES}, CHOICES.count),
        ],
    )
    def test_sampling_parameters_have_vllms_names_too(
        self, model: Model, sampling: dict[str, Any], fits: Any
    ) -> None:
        bias = {"logit_bias": {"29": 5}} if "json_object" in str(sampling) else {}
        reply = model.sample(PROMPT, **sampling, **bias, max_tokens=120)

        assert reply.ok, reply.error
        if reply.texts("finish_reason") == ["stop"]:
            assert fits(reply.text()) not in (None, 0, False), reply.text()

    @pytest.mark.parametrize(
        "options, said",
        [
            ({"json_schema": '{"type": "strin"}'}, "json_schema: Invalid type"),
            ({"json_schema": '{"$ref": "#"}'}, "json_schema: no text that this model can write"),
            ({"regex": "(("}, "regex: not a valid regular expression: unclosed group"),
            ({"choice": [""]}, "choice: got only empty texts"),
            ({"regex": "a", "choice": ["a"]}, "regex and choice: both given"),
            ({"sampling_parameters": '{"guided_json": 3}'}, "sampling_parameters: guided_json"),
        ],
        ids=lambda value: str(value)[:50],
    )
    def test_what_it_can_not_be_held_to_is_a_400_that_names_it(
        self, model: Model, options: dict[str, Any], said: str
    ) -> None:
        reply = model.ask("tensors", PROMPT, max_tokens=4, **options)

        assert reply.status == 400, reply
        assert reply.error.startswith(said), reply.error


class StructuredStreams:
    """``model`` streams."""

    def test_a_stream_fits_its_schema(self, model: Model) -> None:
        options = {"json_schema": json.dumps(SCHEMA), "max_tokens": 80}
        chunks = model.engine.stream(PROMPT, **options)

        assert len(chunks) > 1
        assert fits_schema(joined(chunks))


class StructuredBatches:
    """``model`` takes a client's batch."""

    def test_each_row_has_its_own_and_empty_texts_are_none(
        self, model: Model, reference: Reference
    ) -> None:
        request = rows(
            [PROMPT] * 3,
            regex=[DATE, "", ""],
            choice=[["", ""], ["yes", "no"], ["", ""]],
            max_tokens=[12, 12, 12],
        )
        reply = model.infer(request)

        assert reply.ok, reply.error
        date, answer, free = reply.texts()
        assert re.fullmatch(DATE, date)
        assert answer in ("yes", "no")
        assert free == reference.text(PROMPT, 12)
