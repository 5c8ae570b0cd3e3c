"""What both images promise, read off the Dockerfile; an engine to build them is not needed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from hf_triton.cli.main import make_parser
from hf_triton.tritonserver.state_file import STATE_PREFIX
from tests.unit.packaging.dockerfile import Stage, read_instructions, read_stages

ROOT = Path(__file__).parents[3]
STAGES = read_stages(ROOT / "Dockerfile")
TARGETS = ["gpu", "cpu"]
# Patterns, so that a build passes where there is none; and how .dockerignore names them.
MAY_BE_MISSING = {"models.loc[k]": "models.lock", "requirement*.tx[t]": "requirement*.txt"}


def _copied_from_checkout(stage: Stage) -> list[str]:
    copies = [shlex.split(value) for value in stage.values("COPY") if "--from=" not in value]
    return [word for words in copies for word in words[:-1] if not word.startswith("--")]


@pytest.mark.threat("container-rights")
@pytest.mark.parametrize("target", TARGETS)
def test_the_container_does_not_run_as_root(target: str) -> None:
    assert STAGES[target].values("USER")[-1] == "1000:1000"


@pytest.mark.threat("secrets-in-images")
def test_no_secret_enters_a_layer() -> None:
    for entry in read_instructions(ROOT / "Dockerfile"):
        if entry.name in {"ARG", "ENV", "RUN", "COPY"}:
            assert not re.search(r"token|secret|passw|api_?key", entry.value, re.I), entry


@pytest.mark.parametrize("stage", ["gpu", "cpu-packages", "cpu"])
def test_what_is_copied_exists_and_is_let_in_by_dockerignore(stage: str) -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    for source in _copied_from_checkout(STAGES[stage]):
        assert source in MAY_BE_MISSING or (ROOT / source).exists(), source
        assert f"!{MAY_BE_MISSING.get(source, source)}" in ignore, source


@pytest.mark.threat("admin-key-file")
def test_dockerignore_keeps_weights_keys_and_local_settings_out() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"**/hf_cache", "**/.env", "**/*.local.yaml", "**/__pycache__"} <= set(ignore)
    assert f"**/{STATE_PREFIX}*" in ignore


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_is_one_that_the_command_line_takes(target: str) -> None:
    (command,) = STAGES[target].values("CMD")
    arguments = make_parser().parse_args(json.loads(command)[1:])
    assert arguments.host == "0.0.0.0"
