"""The demo model behind the stub, in each way it can be served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.stub_endpoint import StubEndpoint
from tests.support.triton import DEMO_MODEL

MODELS_YAML = f"""\
defaults:
  task: text-generation
  model: {DEMO_MODEL}
models:
  - name: demo
  - name: batched
    max_batch_size: 8
  - name: padded
    max_batch_size: 8
    options: {{engine: generate}}
  - name: tight
    options: {{max_num_seqs: 1, max_queue_size: 2}}
  - name: tight_padded
    options: {{engine: generate, max_num_seqs: 1, max_queue_size: 2}}
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubEndpoint]:
    """``demo`` takes tensors ``[1]``, ``batched`` and ``padded`` ``[batch, 1]``; the ``tight`` ones
    have room for three requests, one of them running.
    """
    from generator.generate import generate

    folder = tmp_path_factory.mktemp("stub")
    config = folder / "models.yaml"
    config.write_text(MODELS_YAML, encoding="utf-8")
    generate(config, folder / "model_repository")
    endpoint = StubEndpoint(folder / "model_repository")
    yield endpoint
    endpoint.close()
