"""Errors tell users to install the packages that pyproject.toml asks for."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from tests.support.triton import ROOT

HINT = re.compile(r"[\"']([a-z][\w-]*)(>=[\d.]+,<[\d.]+)[\"']")
HINTS = sorted(
    {
        found
        for folder in ("generator", "hf_triton")
        for path in (ROOT / folder).rglob("*.py")
        for found in HINT.findall(path.read_text(encoding="utf-8"))
        if found[0] != "bitsandbytes"  # has no extra: it needs a GPU
    }
)


def test_there_are_hints() -> None:
    assert len(HINTS) > 8


@pytest.mark.parametrize("name, bounds", HINTS)
def test_a_hint_has_the_bounds_of_an_extra(name: str, bounds: str) -> None:
    asked = [re.split("[ ;]", line)[0] for line in metadata.requires("hf-triton") or ()]
    wanted = set(bounds.split(","))
    assert any(
        line.startswith(name) and set(line[len(name) :].split(",")) == wanted for line in asked
    ), [line for line in asked if line.startswith(name)]
