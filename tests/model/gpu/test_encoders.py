"""Encoders' batches as graphs: what they capture, copy and wait for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hf_triton.encoder.runners.graph_runner import GraphRunner, buckets
from hf_triton.encoder.runners.runner import RunnerSetup
from hf_triton.encoder.texts.encoding import Encoding
from tests.model.gpu.fake.gpu import FakeGpu
from tests.model.gpu.fake.models import on_gpu
from tests.model.gpu.test_captures import bad_attention, warmed_up_otherwise

MAX_LENGTH = 16
GPU = torch.device("cuda:0")
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "modernbert": {f"{name}_token_id": 0 for name in ("pad", "eos", "bos", "cls", "sep")},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
}


def graph_runner(model_type: str) -> GraphRunner:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(model_type, **SHAPE, **ENCODERS[model_type])
    with torch.device("meta"):
        model = AutoModel.from_config(config, dtype=torch.float16)
    has_types = model_type == "bert"
    return GraphRunner(RunnerSetup(on_gpu(model.eval()), GPU, "hidden", MAX_LENGTH, has_types))


@pytest.mark.parametrize("model_type", ENCODERS)
def test_every_bucket_of_an_encoder_is_captured_and_a_batch_waits_for_nothing(
    model_type: str,
) -> None:
    with FakeGpu() as gpu:
        runner = graph_runner(model_type)
        assert len(gpu.captures) == len(list(buckets(MAX_LENGTH)))
        gpu.log.clear()
        runner.forward([Encoding([5] * length, [0] * length) for length in (12, 12, 13)])
        assert bad_attention(gpu) == []
    assert gpu.problems == []
    assert warmed_up_otherwise(gpu) == []
    assert (gpu.log.count("replay"), gpu.log.count("h2d")) == (1, 1)
    assert gpu.log.count("wait") == 0, gpu.log.told("wait")
