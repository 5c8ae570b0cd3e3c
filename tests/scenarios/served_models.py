"""The models that the scenarios are run on: the demo model in each way it can be served.

The same text is served by the stub and by the real server.
"""

from __future__ import annotations

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
  - name: timed
    options: {{default_timeout_ms: 300, max_timeout_ms: 60000}}
"""
BATCHED = ("batched", "padded")  # tensors of [batch, 1], the others take [1]


def is_batched(name: str) -> bool:
    """True if a model, or its engine's folder, takes tensors ``[batch, 1]``."""
    return name.removesuffix("_stream") in BATCHED
