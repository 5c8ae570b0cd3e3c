"""The promises of pyproject.toml: bounded requirements, one torch, the pythons we say."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
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
