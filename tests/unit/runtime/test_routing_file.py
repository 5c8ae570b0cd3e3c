"""routing.json: which numbers are taken, and which files are refused."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from hf_triton.runtime.routing.router import Arm, parse

ARMS = [
    {"name": "stable", "engine": "m", "weight": 99.9},
    {"name": "new", "engine": "m_new", "weight": 0.1},
]
GOOD: dict[str, Any] = {"arms": ARMS, "sticky": "user"}


def test_numbers_are_taken_exactly_as_they_are_written() -> None:
    routing = parse(json.dumps(GOOD).encode())
    assert routing.arms[1] == Arm("new", "m_new", Fraction(1, 10))
    assert routing.sticky == "user"


@pytest.mark.parametrize(
    "content",
    [
        b"\x80",
        b"{",
        b"[]",
        b"{}",
        json.dumps({**GOOD, "arms": [ARMS[0]]}).encode(),
        json.dumps({**GOOD, "arms": []}).encode(),
        json.dumps({**GOOD, "arms": [ARMS[0], {**ARMS[1], "weight": "0.1"}]}).encode(),
        json.dumps(
            {**GOOD, "arms": [{**ARMS[0], "weight": 150}, {**ARMS[1], "weight": -50}]}
        ).encode(),
    ],
)
def test_what_the_generator_does_not_write_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match="not as the generator writes it"):
        parse(content)
