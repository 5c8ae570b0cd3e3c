"""The model that speculative decoding is measured with says its prompt again, as it is to."""

from __future__ import annotations

import random
from typing import Any

import torch

from perf.model import llama_config
from perf.speculation.copying import copying_model


def test_a_copying_model_copies() -> None:
    rnd = random.Random(0)
    text = [rnd.randrange(9, 2000) for _ in range(40)]
    config = llama_config(128, num_layers=2)
    config.vocab_size = 2048
    model: Any = copying_model(0.0, config)
    with torch.inference_mode():
        said = model.generate(
            torch.tensor([[*text, *text[:3]]]),
            attention_mask=torch.ones(1, 43, dtype=torch.int64),
            max_new_tokens=30,
            do_sample=False,
        )
    assert said[0, 43:].tolist() == text[3:33]
