"""Tiny sentence-transformers models in a folder, and their embeddings by plain torch.

The reference follows sentence-transformers' rules in the order of its modules, one text at a time,
so that there is no padding to get wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from tests.support.tiny_encoders import tiny_encoder

HIDDEN = 32
_MODULES = "sentence_transformers.models"


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def sentence_model(
    folder: Path,
    pooling: dict[str, Any],
    *later: str,
    transformer: dict[str, Any] | None = None,
    prompts: dict[str, Any] | None = None,
) -> Path:
    """A tiny encoder with the files that sentence-transformers writes. ``later`` are the modules
    after pooling; ``prompts`` is config_sentence_transformers.json.
    """
    model = tiny_encoder("bert", "AutoModel", folder / "model")
    kinds = ["Transformer", "Pooling", *later]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_MODULES}.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write_json(model / "modules.json", modules)
    write_json(model / "sentence_bert_config.json", {"max_seq_length": 128, **(transformer or {})})
    write_json(model / "config_sentence_transformers.json", prompts or {})
    write_json(model / "1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, **pooling})
    return model


def write_dense(
    folder: Path, size_in: int, size_out: int, *, pickled: bool = False, **config: Any
) -> torch.nn.Linear:
    """A Dense module's folder with random weights, which are returned."""
    torch.manual_seed(3)
    linear = torch.nn.Linear(size_in, size_out)
    weights = {f"linear.{name}": value for name, value in linear.state_dict().items()}
    write_json(folder / "config.json", {"in_features": size_in, "out_features": size_out, **config})
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        from safetensors.torch import save_file

        save_file(weights, folder / "model.safetensors")
    return linear


class Reference:
    """A model and its tokenizer, called for one text alone."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.model: Any = AutoModel.from_pretrained(model).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)

    @torch.inference_mode()
    def states(self, text: str) -> torch.Tensor:
        """(tokens, hidden)."""
        found = self.tokenizer(text, return_tensors="pt", truncation=True)
        states: torch.Tensor = self.model(**found).last_hidden_state[0]
        return states

    def embedding(self, text: str, mode: str) -> torch.Tensor:
        """(hidden,), by sentence-transformers' documentation of its modes."""
        states = self.states(text)
        weights = torch.arange(1, len(states) + 1).float()
        found: torch.Tensor = {
            "cls": states[0],
            "lasttoken": states[-1],
            "max": states.max(dim=0).values,
            "mean": states.mean(dim=0),
            "weightedmean": weights @ states / weights.sum(),
        }[mode]
        return found


def unit(vector: torch.Tensor) -> torch.Tensor:
    """The vector with a length of 1."""
    return functional.normalize(vector, dim=-1)
