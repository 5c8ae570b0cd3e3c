"""Models that vLLM spreads over more GPUs than a node has, on Kubernetes; and over those of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy import leaderworkerset
from tests.deploy.conftest import Deploy
from tests.deploy.test_kubernetes import VERSIONS
from tests.deploy.workspace import Rendered

SPREAD = """\
models:
  - name: large
    task: text-generation
    model: org/large
    layout: {layout}
    options:
      engine: vllm
      vllm: {{tensor_parallel_size: 8, pipeline_parallel_size: 2{more}}}
"""
RAY = ", distributed_executor_backend: ray"
FLAGS = ("kubernetes", "--config", "spread.yaml")


def write(work: Path, layout: str = "single", more: str = RAY) -> None:
    (work / "spread.yaml").write_text(SPREAD.format(layout=layout, more=more))


def group(rendered: Rendered) -> dict[str, Any]:
    assert rendered.code == 0, rendered.err
    found: dict[str, Any] = rendered.object("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    return found


def container(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = template["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("layout", ["single", "vllm-backend"])
@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--openai", "--network-policy", "--shared-claim", "--rollout", "replace"),
        ("--monitoring", "operator", "--image-pull-secret", "pull", "--node-selector", "a=b"),
    ],
)
def test_every_object_is_right_by_the_schema(
    deploy: Deploy, work: Path, flags: tuple[str, ...], layout: str
) -> None:
    write(work, layout)
    rendered = deploy(*FLAGS, *flags)
    group(rendered)
    for entry in rendered.objects():
        if entry["kind"] == "LeaderWorkerSet":
            leaderworkerset.check(entry, VERSIONS)
        elif entry["kind"] not in ("PodMonitor", "PrometheusRule"):
            kubernetes_validate.validate(entry, "1.31", strict=True)


def test_nodes_share_the_gpus_and_ray_joins_them(deploy: Deploy, work: Path) -> None:
    write(work)
    found = group(deploy(*FLAGS))
    assert found["size"] == 2
    leader, worker = (container(found[f"{role}Template"]) for role in ("leader", "worker"))
    for one in (leader, worker):
        assert one["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert {"name": "VLLM_HOST_IP", "value": "$(POD_IP)"} in one["env"]
    assert leader["args"][2] == (
        'ray start --head --port=6379 --disable-usage-stats && exec "$0" "$@"'
    )
    assert leader["args"][3:5] == ["hf-triton", "serve"]
    assert "ray start --address=$LWS_LEADER_ADDRESS:6379" in worker["args"][2]


def test_only_leaders_are_reached_probed_and_know_the_keys(deploy: Deploy, work: Path) -> None:
    write(work)
    rendered = deploy(*FLAGS)
    found = group(rendered)
    chosen = rendered.object("Service")["spec"]["selector"].items()
    assert chosen <= found["leaderTemplate"]["metadata"]["labels"].items()
    assert not chosen <= found["workerTemplate"]["metadata"]["labels"].items()
    worker = container(found["workerTemplate"])
    assert not {"ports", "readinessProbe", "livenessProbe", "lifecycle"} & worker.keys()
    assert "HF_TRITON_ADMIN_KEY" not in [entry["name"] for entry in worker["env"]]


def test_every_node_has_the_weights_at_one_path(deploy: Deploy, work: Path) -> None:
    write(work, "vllm-backend")
    found = group(deploy(*FLAGS))
    leader, worker = found["leaderTemplate"]["spec"], found["workerTemplate"]["spec"]
    assert leader["initContainers"] == worker["initContainers"]
    assert leader["volumes"] == worker["volumes"]
    assert leader["containers"][0]["workingDir"] == worker["containers"][0]["workingDir"]


def test_the_commands_name_the_controller_that_is_needed(deploy: Deploy, work: Path) -> None:
    write(work)
    assert "kubernetes-sigs/lws/releases/latest" in deploy(*FLAGS).out


@pytest.mark.parametrize(
    "flags, more, expected",
    [
        ((), "", "options.vllm needs distributed_executor_backend: ray"),
        (("--gpus", "16"), RAY, "leave --gpus out; --gpus-per-node says what a node has"),
        (("--gpus-per-node", "6"), RAY, "16 are not to be shared evenly by 3 nodes"),
    ],
)
def test_what_several_nodes_need_is_told(
    deploy: Deploy, work: Path, flags: tuple[str, ...], more: str, expected: str
) -> None:
    write(work, more=more)
    rendered = deploy(*FLAGS, *flags)
    assert rendered.code == 2
    assert "'large' asks for 16 GPUs (options.vllm), of which a node has" in rendered.err
    assert expected in rendered.err


@pytest.mark.parametrize("target", ["compose", "kserve"])
def test_other_targets_have_one_node(deploy: Deploy, work: Path, target: str) -> None:
    write(work)
    rendered = deploy(target, "--config", "spread.yaml")
    assert rendered.code == 2
    assert "several nodes are for deploy kubernetes" in rendered.err


def test_a_server_of_several_models_is_not_spread(deploy: Deploy, work: Path) -> None:
    write(work)
    other = "  - {name: other, task: text-generation, model: org/other}\n"
    (work / "spread.yaml").write_text((work / "spread.yaml").read_text() + other)
    assert "with --per-model" in deploy(*FLAGS).err
    rendered = deploy(*FLAGS, "--per-model")
    assert rendered.code == 0, rendered.err
    kinds = {entry["kind"] for entry in rendered.objects()}
    assert {"LeaderWorkerSet", "Deployment"} <= kinds


def test_within_a_node_the_gpus_of_the_server_follow_from_the_model(
    deploy: Deploy, work: Path
) -> None:
    write(work)
    rendered = deploy(*FLAGS, "--gpus-per-node", "16")
    assert rendered.server()["resources"]["limits"]["nvidia.com/gpu"] == 16
    assert "asks for 16 GPUs" in deploy(*FLAGS, "--gpus-per-node", "16", "--gpus", "4").err
