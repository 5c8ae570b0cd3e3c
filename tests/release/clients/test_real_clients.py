"""The real clients, each in an environment of its own, below hf-triton/clients in the user's
cache; a run writes their lines of docs/clients.md.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hf_triton.tritonserver.listen import Listen
from tests.release.clients.agent.model import HOOKS, agent_model
from tests.release.clients.real_clients import CLIENTS, DRIVERS, Client
from tests.release.clients.table import Tried, write_line
from tests.scenarios.reference import Reference
from tests.support.installed import environment_with, run_in, version_in
from tests.support.served import started
from tests.support.triton import DEMO_MODEL, free_ports

PROMPT = "How can you be"
MODELS_YAML = """\
models:
  - {{name: demo, task: text-generation, model: {demo}/model}}
  - {{name: batched, task: text-generation, model: {demo}/model, max_batch_size: 8}}
  - {{name: chat, task: text-generation, model: {demo}/model}}
  - {{name: agent, task: text-generation, model: {agent}, hooks: {hooks},
     options: {{max_num_seqs: 4}}}}
  - {{name: embedding, task: feature-extraction, model: {demo}/embedding}}
  - {{name: classifier, task: text-classification, model: {demo}/classifier}}
"""


@pytest.fixture(scope="module")
def environment(
    reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """The drivers' environment: the server's address for each client, and what to expect."""
    folder = tmp_path_factory.mktemp("served")
    agent = agent_model(folder / "agent_model")
    models = MODELS_YAML.format(demo=DEMO_MODEL.parent, agent=agent, hooks=HOOKS)
    with served(folder / "all", models) as listen:
        openai = f"http://{listen.address(listen.openai_port)}"
        yield {
            **os.environ,
            "HOME": str(folder),  # where clients keep settings and caches
            "HF_HUB_OFFLINE": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "SERVER": openai,
            "OPENAI_BASE_URL": f"{openai}/v1",
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": openai,
            "ANTHROPIC_API_KEY": "none",
            "TRITON_HTTP": listen.address(listen.http_port),
            "TRITON_GRPC": listen.address(listen.grpc_port),
            "EXPECTED": reference.text(PROMPT, 12),
            "EXPECTED_WHOLE": reference.text(PROMPT, 64),
        }


@contextlib.contextmanager
def served(folder: Path, models_yaml: str) -> Iterator[Listen]:
    """Runs ``hf-triton serve``; yields its ports once all its models are ready."""
    folder.mkdir()
    (folder / "models.yaml").write_text(models_yaml, encoding="utf-8")
    listen = replace(free_ports(), openai_port=free_ports().http_port)
    with started(folder, ("hf_triton.cli",), (), listen, {"OMP_NUM_THREADS": "1"}) as running:
        running.wait_for("hf-triton: serving ")
        yield listen


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_client(client: Client, environment: Mapping[str, str], tmp_path: Path) -> None:
    folder = environment_with(client.requirements)
    tried = driven(client, folder, {**environment, "OUTPUT": str(tmp_path)})
    write_line(client.name, version_in(folder, client.requirements[0]), tried, client.gaps)

    failed = {one.name: one.detail for one in tried if not one.ok}
    assert tried
    assert failed.keys() == client.gaps.keys(), json.dumps(failed, indent=2)


def driven(client: Client, folder: Path, environment: Mapping[str, str]) -> list[Tried]:
    """The results of a client's driver, with one more if it did not come to its end.

    A module of Node finds its packages from the folder that it lies in.
    """
    script = DRIVERS / client.driver
    if script.suffix == ".mjs":
        for path in DRIVERS.glob("*.mjs"):
            (folder / path.name).write_bytes(path.read_bytes())
        script = folder / client.driver
    done = run_in(
        folder,
        "node" if script.suffix == ".mjs" else "python",
        str(script),
        environment={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    tried = [Tried(**json.loads(line)) for line in lines]
    if done.returncode:
        tried.append(Tried("the whole driver", False, f"{done.stdout}\n{done.stderr}"))
    return tried
