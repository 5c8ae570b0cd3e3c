"""The promises of pyproject.toml and the Dockerfile, read off them."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hf_triton.cli.main import make_parser
from hf_triton.tritonserver.state_file import STATE_PREFIX
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


ROOT = Path(__file__).parents[3]
LINES = re.sub(r"\\\n(?:#.*\n)*\s*", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
# Instructions and their arguments, by the names of stages.
STAGES = {
    stage.split(maxsplit=3)[2]: re.findall(r"^([A-Z]+) (.*)$", stage, re.MULTILINE)
    for stage in re.split(r"^FROM ", LINES, flags=re.MULTILINE)[1:]
}
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
# Patterns, so that a build passes where there is none; and how .dockerignore names them.
MAY_BE_MISSING = {"models.loc[k]": "models.lock", "requirement*.tx[t]": "requirement*.txt"}


def values(stage: str, name: str) -> list[str]:
    return [value for found, value in STAGES[stage] if found == name]


@pytest.mark.threat("container-rights")
@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_the_container_does_not_run_as_root(target: str) -> None:
    assert values(target, "USER")[-1] == "1000:1000"


@pytest.mark.threat("secrets-in-images")
def test_no_secret_enters_a_layer() -> None:
    for name, value in re.findall(r"^(ARG|ENV|RUN|COPY) (.*)$", LINES, re.MULTILINE):
        assert not re.search(r"token|secret|passw|api_?key", value, re.I), (name, value)


def test_what_is_copied_exists_and_is_let_in_by_dockerignore() -> None:
    copies = [value.split() for stage in STAGES for value in values(stage, "COPY")]
    sources = {
        word
        for words in copies
        if not any(word.startswith("--from=") for word in words)
        for word in words[:-1]
        if not word.startswith("--")
    }
    assert IGNORED[1] == "*"
    assert len(sources) > 3
    for source in sources:
        assert source in MAY_BE_MISSING or (ROOT / source).exists(), source
        assert f"!{MAY_BE_MISSING.get(source, source)}" in IGNORED, source


@pytest.mark.threat("admin-key-file")
def test_dockerignore_keeps_weights_keys_and_local_settings_out() -> None:
    assert {"**/hf_cache", "**/.env", "**/*.local.yaml", "**/__pycache__"} <= set(IGNORED)
    assert f"**/{STATE_PREFIX}*" in IGNORED


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_the_command_is_one_that_the_command_line_takes(target: str) -> None:
    (command,) = values(target, "CMD")
    arguments = make_parser().parse_args(json.loads(command)[1:])
    assert arguments.host == "0.0.0.0"
