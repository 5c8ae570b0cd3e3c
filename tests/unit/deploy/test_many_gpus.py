"""Models that vLLM spreads over several GPUs, on Kubernetes."""

from __future__ import annotations

from pathlib import Path

from tests.unit.deploy.conftest import Deploy

SPREAD = """\
models:
  - name: large
    task: text-generation
    model: org/large
    options:
      engine: vllm
      vllm: {tensor_parallel_size: 8, pipeline_parallel_size: 2}
"""
FLAGS = ("kubernetes", "--config", "spread.yaml")


def test_the_gpus_of_a_server_follow_from_its_model(deploy: Deploy, work: Path) -> None:
    (work / "spread.yaml").write_text(SPREAD)
    rendered = deploy(*FLAGS, "--gpus-per-node", "16")
    assert rendered.server()["resources"]["limits"]["nvidia.com/gpu"] == 16


def test_more_gpus_than_a_node_has_are_refused(deploy: Deploy, work: Path) -> None:
    (work / "spread.yaml").write_text(SPREAD)
    rendered = deploy(*FLAGS)
    assert rendered.code == 2
    asked = "options.vllm of 'large' asks for 16 GPUs, of which a node has 8 (--gpus-per-node)"
    assert f"{asked}: for one model over several nodes use vLLM's own Helm chart" in rendered.err
