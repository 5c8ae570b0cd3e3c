"""The Compose target: right by the Compose specification's schema, and closed to the outside."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from generator.deploy.rendering import quote_for_compose
from hf_triton.cli.main import make_parser
from tests.unit.deploy.conftest import Deploy
from tests.unit.deploy.workspace import LOCAL, Rendered, write_lock

SCHEMA = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
VARIANTS = {
    "plain": (),
    "cpu": ("--config", "local.yaml", "--device", "cpu"),
    "everything": (
        *("--openai", "--listen", "::", "--gpus", "4", "--cpu", "4", "--memory", "32Gi"),
        *("--image", "hub/hf-triton:1", "--name", "mine"),
    ),
}


def triton(rendered: Rendered) -> Any:
    return rendered.yaml("compose.yaml")["services"]["triton"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_right_by_the_schema(deploy: Deploy, variant: str) -> None:
    rendered = deploy("compose", *VARIANTS[variant])
    assert rendered.code == 0, rendered.err
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(rendered.yaml("compose.yaml"))


@pytest.mark.threat("network-reach")
def test_ports_are_bound_to_this_machine_unless_asked(deploy: Deploy) -> None:
    services = deploy("compose", "--openai").yaml("compose.yaml")["services"]
    ports = [port for service in services.values() for port in service["ports"]]
    assert len(ports) == 7
    assert all(port.startswith("127.0.0.1:") for port in ports)
    asked = triton(deploy("compose", "--listen", "::"))["ports"]
    assert asked[0] == "[::]:${HTTP_PORT:-8000}:8000"


@pytest.mark.threat("secrets-in-images")
def test_no_secret_stands_in_a_file(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_" + "a" * 34
    for name in ("HF_TOKEN", "HF_TRITON_ADMIN_KEY", "HF_TRITON_API_KEYS"):
        monkeypatch.setenv(name, secret)
    rendered = deploy("compose", "--openai")
    assert secret not in "".join(rendered.files.values())
    environment = triton(rendered)["environment"]
    for name in ("HF_TOKEN", "HF_TRITON_ADMIN_KEY", "HF_TRITON_API_KEYS"):
        assert environment[name] is None  # as it is in the environment of docker compose
    grafana = rendered.yaml("compose.yaml")["services"]["grafana"]["environment"]
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_ADMIN_PASSWORD:?")


def test_everything_that_is_mounted_exists(deploy: Deploy, work: Path) -> None:
    write_lock(work)
    for config, number in (("models.yaml", 3), ("local.yaml", 2)):
        rendered = deploy("compose", "--config", config)
        services = rendered.yaml("compose.yaml")["services"].values()
        binds = [mount for service in services for mount in service["volumes"]
                 if mount["type"] == "bind"]  # fmt: skip
        for mount in binds:
            assert (work / "out" / mount["source"]).exists(), mount
            assert mount["read_only"] is True
        assert len(binds) == number + 3


def test_folders_that_adapters_may_come_from_are_mounted(deploy: Deploy, work: Path) -> None:
    (work / "adapters").mkdir()
    (work / "local.yaml").write_text(f"{LOCAL}    adapters_from: [org/*, ./adapters]\n")
    mounts = triton(deploy("compose", "--config", "local.yaml"))["volumes"]
    (found,) = (one for one in mounts if one["target"] == "/srv/hf-triton/config/adapters")
    assert (work / "out" / found["source"]).resolve() == work / "adapters"


def test_the_command_is_one_that_the_command_line_takes(deploy: Deploy) -> None:
    program, *arguments = triton(deploy("compose", "--openai"))["command"]
    assert program == "hf-triton"
    parsed = make_parser().parse_args(arguments)
    assert (parsed.host, parsed.openai_port) == ("0.0.0.0", 9000)


def test_the_gpu_is_asked_for_where_models_use_one(deploy: Deploy) -> None:
    devices = triton(deploy("compose"))["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    on_cpu = triton(deploy("compose", "--config", "local.yaml", "--device", "cpu", "--cpu", "3"))
    assert on_cpu["environment"]["OMP_NUM_THREADS"] == "3"
    assert "deploy" not in on_cpu
    assert on_cpu["image"] == "hf-triton:cpu"


def test_an_override_file_of_the_users_is_found_and_kept(deploy: Deploy, work: Path) -> None:
    assert "cd out && docker compose up -d" in deploy("compose").out
    override = work / "out/compose.override.yaml"
    override.write_text("services: {grafana: {image: mine}}")
    assert deploy("compose", "--openai").code == 0
    assert override.is_file()


def test_a_dollar_of_the_users_is_no_variable() -> None:
    assert str(quote_for_compose("a$HOME")) == '"a$$HOME"'
