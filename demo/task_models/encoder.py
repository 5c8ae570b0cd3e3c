"""The small BERT under the demo encoders, and batches for it; knows no task."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig

from demo.task_models.wordpiece import LONGEST, wordpiece_tokenizer

BASE = "mask"  # the model whose weights the other encoders begin with


def bert_config(tokenizer: Any, **changes: Any) -> BertConfig:
    """Return the config of a BERT of two layers, 64 wide, of about 140,000 parameters."""
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LONGEST,
        initializer_range=0.05,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
        **changes,
    )


def set_sinusoids(model: Any) -> None:
    """Begin with positions as sines and cosines: attention to neighbours is then soon learned."""
    weight = model.bert.embeddings.position_embeddings.weight.data  # (LONGEST, hidden)
    half = weight.shape[1] // 2
    frequencies = torch.exp(-math.log(200) * torch.arange(half) / half)
    angles = torch.arange(len(weight))[:, None] * frequencies
    weight.copy_(0.05 * torch.cat((angles.sin(), angles.cos()), dim=1))


def load_base(out: Path, model_class: Any, **changes: Any) -> tuple[Any, Any]:
    """Return the tokenizer, and a model with the body of the fill-mask model and a new head."""
    model = model_class.from_pretrained(out / BASE, dtype=torch.float32, **changes)
    return wordpiece_tokenizer(), model


def padded(tokenizer: Any, texts: Sequence[Any], **options: Any) -> dict[str, torch.Tensor]:
    """Return tensors (batch, seq) of the texts or pairs, padded to the longest, cut to LONGEST."""
    options = {"truncation": True, "max_length": LONGEST, **options}
    found: Any = tokenizer(list(texts), padding=True, return_tensors="pt", **options)
    return dict(found)


class BatchSampler:
    """Samples batches from a list of examples, by a random generator of its own."""

    def __init__(self, examples: Sequence[Any], batch_size: int, seed: int) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._rng = random.Random(seed)

    def __call__(self) -> list[Any]:
        """Return ``batch_size`` different examples."""
        return self._rng.sample(self._examples, self._batch_size)
