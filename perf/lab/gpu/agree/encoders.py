"""The product's runner of each kind of encoder, beside the same weights in float32 on the CPU."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

from hf_triton.encoder.runners.graph_runner import GraphRunner
from hf_triton.encoder.runners.padded_runner import EQUAL_LENGTHS, PADDED
from hf_triton.encoder.runners.runner import (
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
    select_runner,
    tolerance_of,
)
from perf.lab.gpu.told import Told, short

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"pad_token_id": 1},
    "modernbert": {f"{name}_token_id": 0 for name in ("pad", "eos", "bos", "cls", "sep")},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 64},
}
_SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 997,
    "max_position_embeddings": 300,
}
_LENGTHS = [5, 17, 9, 33, 3, 64, 100, 256, 1, 17]


def measure(told: Told) -> None:
    """A row for each and dtype."""
    for kind, dtype in itertools.product(ENCODERS, (torch.float32, torch.bfloat16)):
        with told.case(f"{kind}, {short(dtype)}", "batches cut by length, CUDA graphs") as row:
            _measure(row, kind, dtype, told.device)


def _measure(row: dict[str, Any], kind: str, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **_SHAPE, **ENCODERS[kind])
    model = AutoModel.from_config(config, dtype=torch.float32).eval().to(dtype)

    def setup(model: Any, device: torch.device) -> RunnerSetup:
        return RunnerSetup(model, device, "hidden", max(_LENGTHS), kind == "bert")

    here = setup(copy.deepcopy(model).to(device), device)
    near = setup(model.float(), torch.device("cpu"))
    texts = random_encodings(near, _LENGTHS)
    expected = [reference_forward(near, text) for text in texts]
    runners = (GraphRunner, PADDED, EQUAL_LENGTHS)
    runner = select_runner(here, runners if device.type == "cuda" else runners[1:])
    got = [one.float().cpu() for one in runner.forward(texts)]
    again = [one.float().cpu() for one in runner.forward(texts[::-1])][::-1]
    worst = max(largest_difference(each, expected) for each in (got, again))
    row |= {"run_by": runner.name, "difference": worst, "allowed": tolerance_of(here.model)}
    row["agrees"] = worst <= tolerance_of(here.model)
