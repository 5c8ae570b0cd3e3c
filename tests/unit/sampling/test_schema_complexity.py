"""Schemas whose expressions can't be followed together are refused; others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.text_generation.structured.json_schemas import (
    branches_of_pattern,
    check_complexity,
)

OPEN = [{"pattern": f"a{number}b.*c{number}"} for number in range(30)]
CODES = [{"pattern": f"^{letter}[0-9a-f]+(-[a-z]+)?$"} for letter in "abcdefghijklmnopqrst"]


def named(*names: str, under: dict[str, Any]) -> dict[str, Any]:
    for name in reversed(names):
        under = {"type": "object", "properties": {name: under}}
    return under


def objects(patterns: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [named(*names, under=pattern) for pattern in patterns]


@pytest.mark.parametrize(
    "schema, place",
    [
        ({"allOf": OPEN}, ""),
        (named("a", under={"allOf": OPEN}), " of a"),
        ({"allOf": objects(OPEN, "a", "b")}, " of b"),
        ({"allOf": [{"items": one} for one in OPEN]}, ""),
        ({"allOf": [{"prefixItems": [{}, one]} for one in OPEN]}, ""),
        ({"allOf": [{"additionalProperties": one} for one in OPEN]}, ""),
        ({"allOf": [{"patternProperties": {"^a": one}} for one in OPEN]}, ""),
        ({"allOf": [{"anyOf": [{"const": "a"}, one]} for one in OPEN]}, ""),
        ({"allOf": [{"oneOf": [one, {"const": 3}]} for one in OPEN]}, ""),
        ({"allOf": [{"allOf": OPEN[:15]}, {"allOf": OPEN[15:]}]}, ""),
        ({"$defs": {"a": {"allOf": OPEN}}, "items": {"$ref": "#/$defs/a"}}, ""),
        ({"$defs": {"a/b": {"allOf": OPEN}}, "$ref": "#/$defs/a~1b"}, ""),
        (
            {
                "allOf": [
                    *objects(OPEN[:8], "a"),
                    {"additionalProperties": {"allOf": OPEN[8:16]}},
                ]
            },
            " of a",
        ),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_too_many_that_hold_one_text_are_refused(schema: dict[str, Any], place: str) -> None:
    said = f"^json_schema: too many patterns apply to one text{place}, allowed: fewer or"
    with pytest.raises(RequestError, match=said):
        check_complexity(json.dumps(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": OPEN[:6]},
        {"anyOf": CODES},
        {"allOf": [named(f"name{i}", under=code) for i, code in enumerate(CODES)]},
        {"oneOf": objects(CODES, "id")},
        {"type": "object", "properties": {f"n{i}": one for i, one in enumerate(OPEN)}},
        {
            "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}, "c": CODES[0]}}},
            "$ref": "#/$defs/a",
        },
        {"properties": {"child": {"$ref": "#"}, "id": CODES[0]}, "allOf": [{"$ref": "#"}]},
        {
            "$defs": {"node": {"properties": {"id": OPEN[0]}}},
            "allOf": [
                {"$ref": "#/$defs/node"},
                {"properties": {"children": {"items": {"$ref": "#"}}}},
            ],
        },
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/elsewhere"},
        {"allOf": "no list", "properties": 3, "pattern": 4, "items": True},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_can_be_followed_is_left_alone(schema: dict[str, Any]) -> None:
    check_complexity(json.dumps(schema))


def test_references_may_lead_on_and_on() -> None:
    chain: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(1000)}
    check_complexity(json.dumps({"$defs": chain, "$ref": "#/$defs/d5"}))
    chain["d999"] = {"allOf": OPEN}
    with pytest.raises(RequestError, match="too many patterns apply to one text"):
        check_complexity(json.dumps({"$defs": chain, "$ref": "#/$defs/d5"}))


@pytest.mark.parametrize(
    "pattern, ways",
    [
        ("^abc$", 1),
        ("abc", 2),
        (r"^\d{3,}\.\d$", 2),
        (r"^[a-z][a-z0-9]*[]|]$", 4),
        (r"^(a|b)*a(a|b){5}$", 3),
        (r"^\p{Lu}.*\|\[x$", 3),
    ],
)
def test_the_ways_of_a_pattern_are_its_classes_and_alternatives(pattern: str, ways: int) -> None:
    assert branches_of_pattern(pattern) == ways
