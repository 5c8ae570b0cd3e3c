"""How requests fall into shares: by weight, and the same value always the same."""

from __future__ import annotations

from collections import Counter

import pytest

from hf_triton.runtime.routing.routing import Arm, Routing

VALUES = [f"user-{number}" for number in range(4_000)]


def _routing(**percents: float) -> Routing:
    return Routing(tuple(Arm(name, name, percent) for name, percent in percents.items()), None)


def _dealt(routing: Routing, number: int) -> dict[str, int]:
    return dict(Counter(routing.choose("", None).name for _ in range(number)))


def _sticky(routing: Routing, value: str, salt: str = "demo") -> str:
    return routing.choose(salt, value).name


def test_requests_are_split_by_weight() -> None:
    found = _dealt(_routing(a=70, b=29.5, c=0.5, d=0), 20_000)
    # Five standard deviations each.
    assert found["a"] == pytest.approx(14_000, abs=325)
    assert found["b"] == pytest.approx(5_900, abs=325)
    assert found["c"] == pytest.approx(100, abs=50)
    assert "d" not in found


def test_an_arm_of_all_requests_gets_each() -> None:
    assert _dealt(_routing(a=0, b=100), 1000) == {"b": 1000}


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
