"""What both images promise, read off the Dockerfile; an engine to build them is not needed."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path

import pytest

from hf_triton.cli.main import make_parser
from hf_triton.tritonserver.state_file import STATE_PREFIX
from tests.packaging.dockerfile import Stage, read_instructions, read_stages

ROOT = Path(__file__).parents[2]
STAGES = read_stages(ROOT / "Dockerfile")
TARGETS = ["gpu", "cpu"]
LOCK = "models.loc[k]"
REQUIREMENTS = "requirement*.tx[t]"


def _copied_from_checkout(stage: Stage) -> list[str]:
    copies = [shlex.split(value) for value in stage.values("COPY") if "--from=" not in value]
    return [word for words in copies for word in words[:-1] if not word.startswith("--")]


def _environment(stage: Stage) -> dict[str, str]:
    words = [word for value in stage.values("ENV") for word in shlex.split(value)]
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("target", TARGETS)
def test_both_targets_are_there(target: str) -> None:
    assert target in STAGES


def test_every_base_image_is_an_argument_with_a_default() -> None:
    defaults = dict(value.split("=", 1) for value in STAGES[""].values("ARG"))
    for stage in STAGES.values():
        if stage.name:
            assert re.fullmatch(r"\$\{(\w+)\}", stage.base), stage.base
            assert defaults[stage.base[2:-1]]


def test_the_triton_release_is_an_argument_of_its_own() -> None:
    defaults = dict(value.split("=", 1) for value in STAGES[""].values("ARG"))
    assert re.fullmatch(r"2[6-9]\.\d\d", defaults["TRITON_VERSION"])
    assert defaults["TRITON_IMAGE"].endswith("tritonserver:${TRITON_VERSION}-py3")


@pytest.mark.parametrize("stage", ["gpu", "cpu-packages"])
def test_transformers_and_the_torch_build_can_be_chosen(stage: str) -> None:
    names = {value.split("=")[0] for value in STAGES[stage].values("ARG")}
    assert {"TRANSFORMERS_SPEC", "TORCH_INDEX_URL"} <= names


@pytest.mark.threat("container-rights")
@pytest.mark.parametrize("target", TARGETS)
def test_the_container_does_not_run_as_root(target: str) -> None:
    assert STAGES[target].values("USER")[-1] == "1000:1000"


@pytest.mark.threat("secrets-in-images")
def test_no_secret_enters_a_layer() -> None:
    for entry in read_instructions(ROOT / "Dockerfile"):
        if entry.name in {"ARG", "ENV", "RUN", "COPY"}:
            assert not re.search(r"token|secret|passw|api_?key", entry.value, re.I), entry


@pytest.mark.parametrize("target", TARGETS)
def test_health_is_asked_at_the_port_that_the_environment_names(target: str) -> None:
    (check,) = STAGES[target].values("HEALTHCHECK")
    _, _, command = check.partition("CMD ")
    assert json.loads(command) == ["python", "-I", "-m", "hf_triton.serving.healthcheck"]
    environment = _environment(STAGES[target])
    assert (environment["HEALTH_PORT"], environment["HTTP_PORT"]) == ("8003", "8000")


@pytest.mark.parametrize("target", TARGETS)
def test_triton_ports_are_exposed_and_a_stop_is_graceful(target: str) -> None:
    assert STAGES[target].values("EXPOSE") == ["8000 8001 8002 8003"]
    assert STAGES[target].values("STOPSIGNAL") == ["SIGTERM"]


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_needs_no_shell(target: str) -> None:
    (command,) = STAGES[target].values("CMD")
    assert json.loads(command)[:2] == ["hf-triton", "serve"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_volume_at_models_belongs_to_the_user(target: str) -> None:
    # A named volume takes the owner of the folder that it is mounted over.
    made = [command for value in STAGES[target].values("RUN") for command in value.split("&&")]
    owned = [command for command in made if "--owner=1000" in command]
    assert any("/models" in shlex.split(command) for command in owned)


def test_only_the_cpu_image_gets_our_tritonserver() -> None:
    assert any("/usr/local/bin/tritonserver" in value for value in STAGES["cpu"].values("RUN"))
    assert not any("bin/tritonserver" in value for value in STAGES["gpu"].values("RUN"))


@pytest.mark.parametrize("stage", ["gpu", "cpu-packages", "cpu"])
def test_what_is_copied_exists_and_is_let_in_by_dockerignore(stage: str) -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignore[1] == "*"
    for source in _copied_from_checkout(STAGES[stage]):
        if source in (LOCK, REQUIREMENTS):
            continue
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignore, source


@pytest.mark.parametrize("target", TARGETS)
def test_a_lock_goes_into_the_image_where_there_is_one(target: str) -> None:
    # As a pattern: a name of its own would fail the build where there is none.
    assert LOCK in _copied_from_checkout(STAGES[target])
    assert fnmatch.fnmatch("models.lock", LOCK)
    assert "!models.lock" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("target", TARGETS)
def test_models_are_generated_in_the_image_by_its_user(target: str) -> None:
    steps = [(step.name, step.value) for step in STAGES[target].instructions]
    made = steps.index(("RUN", "hf-triton generate"))
    assert "models.yaml" in " ".join(value for name, value in steps[:made] if name == "COPY")
    assert [value for name, value in steps[:made] if name == "USER"][-1] == "1000:1000"
    assert "model_repository" not in " ".join(_copied_from_checkout(STAGES[target]))


@pytest.mark.parametrize("target", TARGETS)
def test_environments_are_built_into_the_image_only_where_asked_for(target: str) -> None:
    assert REQUIREMENTS in _copied_from_checkout(STAGES[target])
    assert "!requirement*.txt" in (ROOT / ".dockerignore").read_text().splitlines()
    (build,) = [value for value in STAGES[target].values("RUN") if "--envs-only" in value]
    assert build.startswith('if [ -n "$PYTHON_ENVS" ]')
    assert 'PYTHON_ENVS=""' in STAGES[target].values("ARG")


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
