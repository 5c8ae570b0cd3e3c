"""Computes the embeddings that answers are compared with, by transformers' own model."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from perf.encoders.check import checked_indices
from perf.load.requests import LOADS


def write_references(file: Path, model_folder: Path, loads: tuple[str, ...], seed: int) -> None:
    """Into ``file``, for the first texts of each load."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModel.from_pretrained(model_folder)
    found: dict[str, dict[int, list[float]]] = {}
    for load in loads:
        indices = checked_indices()
        requests = islice(LOADS[load](seed), 0, indices.stop, indices.step)
        found[load] = {
            request.index: embedding(tokenizer, model, request.prompt) for request in requests
        }
    file.write_text(json.dumps(found), encoding="utf-8")


@torch.inference_mode()
def embedding(tokenizer: Any, model: Any, text: str) -> list[float]:
    """The mean of a text's last hidden states, of length 1."""
    hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state  # (1, tokens, size)
    normalized = torch.nn.functional.normalize(hidden.mean(dim=1), dim=-1)
    return list(map(float, normalized[0].tolist()))
