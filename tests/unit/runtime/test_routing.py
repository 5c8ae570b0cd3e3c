"""Requests are split among the arms of a canary by routing.json, and a value stays with its arm."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from hf_triton.runtime.routing.router import Arm, Routing, parse

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


VALUES = [f"user-{number}" for number in range(4_000)]


def _routing(**percents: float) -> Routing:
    arms = [Arm(name, name, Fraction(str(percent))) for name, percent in percents.items()]
    return Routing(arms, None)


def _dealt(routing: Routing, number: int = 1) -> dict[str, int]:
    return dict(Counter(routing.choose("", None).name for _ in range(number)))


def _sticky(routing: Routing, value: str, salt: str = "demo") -> str:
    return routing.choose(salt, value).name


@pytest.mark.parametrize(
    "percents, number, expected",
    [
        ((90, 10), 100, {"a": 90, "b": 10}),
        ((90, 10), 10, {"a": 9, "b": 1}),
        ((99.5, 0.5), 200, {"a": 199, "b": 1}),
        ((33.3, 33.3, 33.4), 1000, {"a": 333, "b": 333, "c": 334}),
        ((0, 100), 7, {"b": 7}),
        ((100, 0), 7, {"a": 7}),
    ],
)
def test_every_block_is_split_exactly(
    percents: tuple[float, ...], number: int, expected: dict[str, int]
) -> None:
    routing = _routing(**dict(zip("abc", percents, strict=False)))
    assert [_dealt(routing, number) for _ in range(3)] == [expected] * 3


def test_clients_that_alternate_meet_both_halves() -> None:
    routing = _routing(a=50, b=50)
    of_every_second = [(_dealt(routing), _dealt(routing))[0] for _ in range(200)]
    assert 50 < of_every_second.count({"a": 1}) < 150  # chance of less than one in 10^12 to fail


def test_a_value_always_falls_into_the_same_share() -> None:
    routing = _routing(stable=90, new=10)
    assert _sticky(routing, "alice") == _sticky(_routing(new=10, stable=90), "alice")
    # Fixed for good: another version of this code must not move anybody.
    found = [n for n in range(80) if _sticky(routing, f"user-{n}") == "new"]
    assert found == [1, 25, 28, 50, 52, 60, 61, 72]


def test_values_fall_into_shares_by_their_size() -> None:
    routing = _routing(a=70, b=25, c=5, d=0)
    found = Counter(_sticky(routing, value) for value in VALUES)
    assert found["a"] == pytest.approx(2_800, rel=0.05)
    assert found["b"] == pytest.approx(1_000, rel=0.1)
    assert found["c"] == pytest.approx(200, rel=0.3)
    assert "d" not in found


def test_a_share_that_grows_takes_only_what_it_grew_by() -> None:
    old, new = _routing(stable=90, new=10), _routing(stable=80, new=20)
    before = {v: _sticky(old, v) for v in VALUES}
    after = {v: _sticky(new, v) for v in VALUES}
    moved = {(before[v], after[v]) for v in VALUES if before[v] != after[v]}
    assert moved == {("stable", "new")}
    assert sum(before[v] != after[v] for v in VALUES) == pytest.approx(400, rel=0.2)


def test_a_share_that_ends_moves_only_its_own_values() -> None:
    three, two = _routing(a=60, b=20, c=20), _routing(a=75, b=25)
    for value in VALUES:
        before, after = _sticky(three, value), _sticky(two, value)
        assert after == before or before == "c"


def test_two_models_split_the_same_values_otherwise() -> None:
    routing = _routing(a=50, b=50)
    alike = sum(_sticky(routing, v, "m") == _sticky(routing, v, "n") for v in VALUES)
    assert alike == pytest.approx(2_000, rel=0.1)
