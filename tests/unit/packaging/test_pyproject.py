"""The promises of pyproject.toml: bounded requirements, one torch, and errors that name them."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from typing import Any

import pytest

from tests.support.triton import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIREMENTS = [*PROJECT["dependencies"], *(entry for extra in EXTRAS.values() for entry in extra)]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_has_an_upper_bound(requirement: str) -> None:
    specifier = requirement.split(";")[0]
    assert re.search(r"==|<", specifier) or specifier.startswith("hf-triton[")


def test_torch_is_pinned_where_setup_and_the_images_look_for_it() -> None:
    pins = re.findall(r'^ *"(torch==[^";]*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert len(pins) == 1


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
