"""Models' own Python environments where a server runs elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.deploy.conftest import Deploy

MODELS = """\
models:
  - name: own
    task: text-generation
    model: org/own
    python_env: KEY
"""
VARIABLE = "HF_TRITON_PYTHON_ENVS"


@pytest.fixture
def needs(work: Path) -> Path:
    """A folder with requirements that include others."""
    folder = work / "needs"
    folder.mkdir()
    (folder / "requirements.txt").write_text("-c limits.txt\neinops\n")
    (folder / "limits.txt").write_text("einops<1\n")
    return folder


def write(work: Path, key: str) -> None:
    (work / "models.yaml").write_text(MODELS.replace("KEY", key))


def test_compose_mounts_the_requirements_where_models_yaml_looks(
    deploy: Deploy, work: Path, needs: Path
) -> None:
    write(work, "needs/requirements.txt")
    rendered = deploy("compose")
    assert "own: the Python environment is built when the container starts" in rendered.err
    triton = rendered.yaml("compose.yaml")["services"]["triton"]
    bound = {volume["target"]: volume["source"] for volume in triton["volumes"]}
    for name in ("requirements.txt", "limits.txt"):
        assert bound[f"/srv/hf-triton/config/needs/{name}"] == f"../needs/{name}"
    assert triton["environment"][VARIABLE].endswith(":/var/cache/hf-triton/python_envs")


def test_pods_get_the_requirements_in_their_configmap(
    deploy: Deploy, work: Path, needs: Path
) -> None:
    write(work, "{requirements: needs/requirements.txt, system_site_packages: true}")
    rendered = deploy("kubernetes")
    assert rendered.code == 0, rendered.err
    served = rendered.object("ConfigMap")["data"]
    assert served["limits.txt"] == "einops<1\n"
    assert "requirements: requirements.txt" in served["models.yaml"]
    names = {variable["name"] for variable in rendered.server()["env"]}
    assert VARIABLE in names


@pytest.mark.parametrize(
    "key, reason",
    [
        ("./env", "'./env' is a folder on this machine, which a cluster does not have"),
        ("needs/above.txt", "top.txt can't lie beside above.txt in a ConfigMap: use one folder"),
    ],
)
def test_what_pods_could_not_have_is_refused(
    deploy: Deploy, work: Path, needs: Path, key: str, reason: str
) -> None:
    (work / "env" / "bin").mkdir(parents=True)
    (work / "env" / "bin" / "python").write_text("")
    (work / "top.txt").write_text("einops\n")
    (needs / "above.txt").write_text("-r ../top.txt\n")
    write(work, key)
    rendered = deploy("kubernetes")
    assert rendered.code == 1
    assert reason in rendered.err
    assert "models.yaml:5:17: models[0].python_env" in rendered.err


def test_a_password_is_not_put_into_a_configmap(deploy: Deploy, work: Path, needs: Path) -> None:
    write(work, "needs/requirements.txt")
    file = needs / "requirements.txt"
    plain = file.read_text()
    file.write_text("--extra-index-url https://me:${WORD}@example.org/simple\n" + plain)
    assert deploy("kubernetes").code == 0
    file.write_text("--extra-index-url https://me:word@example.org/simple\n" + plain)
    found = deploy("kubernetes")
    assert found.code == 1
    assert "requirements.txt has a password" in found.err
