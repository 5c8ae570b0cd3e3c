"""Numbers of a schema are written as they stand, or refused: none is rounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.structured.constraint import Constraint
from tests.model.engine.sampling.test_structured import (
    PADDING,
    Grammars,
    byte_level,
    generate,
    sequence,
    text_of,
)

LARGE = 1234567890123456789
INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    grammars = Grammars(byte_level())
    yield grammars
    grammars.close()


def written(grammars: Grammars, constraint: Constraint) -> str:
    tokenizer = byte_level()
    one = sequence(grammars.compile(constraint)(), tokenizer)
    generate([one], tokenizer.eos_token_id, len(tokenizer) + PADDING)
    assert one.finish_reason == "stop", one.error
    return text_of(one)


def within(schema: dict[str, Any]) -> dict[str, Any]:
    listed = {"type": "array", "items": {"anyOf": [{"type": "null"}, schema]}}
    return {"type": "object", "properties": {"id": listed}, "required": ["id"]}


@pytest.mark.parametrize(
    "schema, key, number",
    [
        ({"const": LARGE}, "const", LARGE),
        ({"const": 2**53 + 1}, "const", 2**53 + 1),
        ({"const": -(2**63)}, "const", -(2**63)),
        ({"const": {"a": [1, LARGE]}}, "const", LARGE),
        ({"enum": ["a", 7, LARGE]}, "enum", LARGE),
        (within({"const": LARGE}), "const", LARGE),
        (within({"type": "integer", "minimum": LARGE}), "minimum", LARGE),
        ({"type": "integer", "maximum": LARGE}, "maximum", LARGE),
        ({"type": "integer", "exclusiveMaximum": 2**60}, "exclusiveMaximum", 2**60),
        ({"type": "integer", "exclusiveMinimum": -(2**60)}, "exclusiveMinimum", -(2**60)),
        ({"type": "number", "maximum": 2**60}, "maximum", 2**60),
        ({"type": ["integer", "number"], "maximum": 1e18}, "maximum", 1e18),
        ({"type": "number", "multipleOf": LARGE}, "multipleOf", LARGE),
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_a_number_that_would_be_rounded_is_refused_by_its_key(
    grammars: Grammars, schema: dict[str, Any], key: str, number: float
) -> None:
    expected = f"json_schema: {key}: got {number}, allowed: numbers below 9007199254740992, beyond"
    with pytest.raises(RequestError) as raised:
        grammars.compile(Constraint("json_schema", (json.dumps(schema),)))
    assert str(raised.value).startswith(expected)


def test_a_schema_within_a_grammar_is_held_to_the_same(grammars: Grammars) -> None:
    for number, is_exact in ((LARGE, False), (2**60, True)):
        constraint = Constraint("grammar", (f'start: "a" %json {{"const": {number}}}',))
        if is_exact:
            assert written(grammars, constraint) == f"a{number}"
        else:
            with pytest.raises(RequestError, match=f"^grammar: const: got {number}, allowed"):
                grammars.compile(constraint)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 7, "default": LARGE, "description": str(LARGE), "examples": [LARGE]},
        {"const": -(2**62)},
        {"const": [2**63 - 1024, 0.1, 1e-7]},
        {"type": "integer", "minimum": 2**53 + 2, "maximum": 2**53 + 2},
        {"type": ["integer", "null"], "minimum": 0, "maximum": INT64, "enum": [7]},
    ],
    ids=json.dumps,
)
def test_other_large_numbers_are_written_exactly(
    grammars: Grammars, schema: dict[str, Any]
) -> None:
    value = json.loads(written(grammars, Constraint("json_schema", (json.dumps(schema),))))
    assert value == schema.get("const", schema.get("enum", [schema.get("minimum")])[0])


def test_whole_numbers_up_to_int64_are_within_its_maximum(grammars: Grammars) -> None:
    tokenizer = byte_level()
    for maximum in (INT64, 2**64 - 1):
        schema = json.dumps({"type": "integer", "minimum": 0, "maximum": maximum})
        grammar = grammars.compile(Constraint("json_schema", (schema,)))()
        for token_id in tokenizer(str(INT64)).input_ids:
            grammar.follow(token_id)
        assert grammar.is_complete
        grammar = grammars.compile(Constraint("json_schema", (schema,)))()
        *first, last = tokenizer(str(INT64 + 1)).input_ids
        for token_id in first:
            grammar.follow(token_id)
        with pytest.raises(RequestError):
            grammar.follow(last)
