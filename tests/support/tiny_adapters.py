"""Adapters of tiny models, made and saved by PEFT, and PEFT's own greedy tokens for them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hf_triton.runtime.weights.served_model import ServedAdapter, ServedModel
from hf_triton.text_generation.lora.linear import Adapters
from hf_triton.text_generation.lora.reading import AdapterReader
from tests.support.served_models import served_model
from tests.support.tiny_models import Asked, reference


@contextmanager
def quiet() -> Iterator[None]:
    """PEFT's advice for training is of no interest here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def save_adapter(model: Any, folder: Path, **config: Any) -> Path:
    """An adapter of random weights, large enough to change what is generated. The model is left as
    it was.
    """
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(config.pop("seed", 0))
    saves_head = config.pop("save_embedding_layers", False)
    with quiet():
        wrapped = get_peft_model(
            model, LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **config)
        )
        wrapped.save_pretrained(str(folder), save_embedding_layers=saves_head)
        wrapped.unload()
    return folder


def served_with(folders: Mapping[str, Path], **changes: Any) -> ServedModel:
    """A model with local adapters, as its model.json describes it."""
    adapters = tuple(
        ServedAdapter(name, str(folder), local=True, revision=None)
        for name, folder in folders.items()
    )
    return served_model(Path("/nowhere/tiny"), **{"adapters": adapters, **changes})


def read(model: Any, folders: Mapping[str, Path]) -> Adapters:
    """The adapters in these folders, as a model loads them."""
    return AdapterReader(served_with(folders), model.config, model.dtype).adapters()


def peft_reference(
    model: Any, folders: Mapping[str, Path], asked: list[Asked]
) -> list[tuple[int, ...]]:
    """PEFT's own model's greedy tokens of each prompt alone, with the adapter it names."""
    from peft import PeftModel

    tokens: dict[int, tuple[int, ...]] = {}
    for name in (None, *folders):
        numbers = [number for number, one in enumerate(asked) if one.lora_name == name]
        prompts = [asked[number] for number in numbers]
        with quiet():
            adapted = PeftModel.from_pretrained(model, str(folders[name])) if name else model
            tokens.update(zip(numbers, reference(adapted, prompts), strict=True))
            if name:
                adapted.unload()
    return [tokens[number] for number in range(len(asked))]
