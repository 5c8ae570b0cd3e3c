"""One real server for the whole suite, with the demo model in each way it can be served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.triton import DEMO_MODEL, Triton, serving

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
"""


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """``demo`` takes tensors ``[1]``, ``batched`` and ``padded`` ``[batch, 1]``; the first two are
    held in flight, the third by ``generate``; ``tight`` has room for three requests. Checks in the
    end that the server stops gracefully.
    """
    folder = tmp_path_factory.mktemp("triton")
    with pytest.MonkeyPatch.context() as patch:
        # Three small models side by side: more threads than cores would be several times slower.
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(MODELS_YAML, folder) as running:
            yield running
