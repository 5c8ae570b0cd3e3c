"""Keywords that only name a JSON schema are dropped, but for those that references need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from hf_triton.text_generation.structured.constraint import Constraint
from hf_triton.text_generation.structured.llguidance_grammars import grammar_text, make_matcher

INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
DRAFT_4, DRAFT_7 = (f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 7))


def schema(**more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": False, **more}


def of(a: Any, **more: Any) -> dict[str, Any]:
    return schema(properties={"a": a}, **more)


def fits(held_to: dict[str, Any], text: str) -> bool:
    constraint = Constraint("json_schema", (json.dumps(held_to),))
    tokenizer = LLTokenizer("byte")
    make_matcher(tokenizer, constraint)  # raises for one that is refused
    matcher = LLMatcher(tokenizer, grammar_text(constraint))
    return matcher.validate_tokens(tokenizer.tokenize_str(text)) == len(text)


@pytest.mark.parametrize(
    "held_to",
    [
        *(
            schema(**{"$schema": one})
            for one in (
                *(DRAFT_4, DRAFT_7, "https://json-schema.org/draft/2020-12/schema"),
                *("http://json-schema.org/schema#", "Output Format", "", 5),
            )
        ),
        *(
            schema(**{"$id": one})
            for one in ("Output Format", "#part", "a#b", "", "http://a.b/c", "://", "1:2", "%zz", 5)
        ),
        schema(**{"$schema": DRAFT_4, "id": "Output Format"}),
        schema(**{"x-meta": {"id": ["no", "text"]}}),
        of({"$ref": "#/$defs/one"}, **{"$id": "Output Format", "$defs": {"one": INTEGER}}),
        of({"$id": "The A", "$ref": "#/$defs/one"}, **{"$defs": {"one": INTEGER}}),
        of({"$id": "part", **INTEGER, "$schema": "any"}, **{"$id": "urn:all"}),
        of(INTEGER, **{"$defs": {"const": {"$id": "Not used", **TEXT}}}),
        # Names that references need.
        of({"$ref": "one"}, **{"$defs": {"one": {"$id": "one", **INTEGER}}}),
        of(
            {"$ref": "http://a.b/one"},
            **{"$id": "http://a.b/c", "$defs": {"x": {"$id": "one", **INTEGER}}},
        ),
        of({"$id": "part", "$ref": "#/$defs/one", "$defs": {"one": INTEGER}}),
        of(
            {"$ref": "#one"},
            **{"$schema": DRAFT_7, "definitions": {"x": {"$id": "#one", **INTEGER}}},
        ),
        of(
            {"$ref": "one"}, **{"$id": "Output Format", "$defs": {"one": {"$id": "one", **INTEGER}}}
        ),
    ],
    ids=json.dumps,
)
def test_a_schema_may_have_any_name(held_to: dict[str, Any]) -> None:
    assert fits(held_to, '{"a": 1}')
    assert not fits(held_to, '{"b": "x"}')


def test_values_and_names_of_members_stay_what_they_are() -> None:
    value = {"$id": "Output Format", "$schema": "any", "id": "x y"}
    for held_to in ({"const": value}, {"enum": [value]}, of({"const": value})):
        text = json.dumps({"a": value} if "type" in held_to else value)
        assert fits(held_to, text)
    members = dict.fromkeys(value, INTEGER)
    assert fits(schema(properties=members), json.dumps(dict.fromkeys(members, 1)))
    assert not fits(schema(properties=members), json.dumps(value))
