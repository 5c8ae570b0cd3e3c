"""A real server with the demo model on a real vLLM; skipped without an environment that has it.

    HF_TRITON_VLLM_ENV=/path/of/environment pytest tests/release/vllm

The environment is one with vLLM and numpy below 2, of this Python's minor version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.triton import DEMO_MODEL, Triton, serving

VARIABLE = "HF_TRITON_VLLM_ENV"
START_S = 3600.0  # four engines of three processes each, on however few cores
# Triton's own way to give a model an environment, which has no path in models.yaml.
PARAMETER = """
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}
"""
MODELS_YAML = f"""\
defaults:
  task: text-generation
  model: {DEMO_MODEL}
  options:
    engine: vllm
    kv_cache_gib: 0.25
    vllm: {{enforce_eager: true}}
models:
  - name: demo
  - name: batched
    max_batch_size: 8
  - name: tight
    options: {{max_num_seqs: 1, max_queue_size: 2}}
  - name: timed
    options: {{default_timeout_ms: 300, max_timeout_ms: 60000}}
"""


@pytest.fixture(scope="session")
def environment() -> Path:
    """The folder of the environment with vLLM."""
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} names no environment with vLLM")
    return Path(path).absolute()


@pytest.fixture(scope="session")
def triton(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """Serves the models of MODELS_YAML. Checks in the end that the server stops gracefully."""

    folder = tmp_path_factory.mktemp("vllm")
    with serving(MODELS_YAML, folder, START_S, in_environment(environment)) as running:
        yield running


def in_environment(environment: Path) -> Callable[[Path], None]:
    """Returns a function that gives models on vLLM the environment."""

    def give(repository: Path) -> None:
        for model in repository.glob("*/1/model.json"):  # fronts have none
            with (model.parent.parent / "config.pbtxt").open("a", encoding="utf-8") as config:
                config.write(PARAMETER.format(environment))

    return give
