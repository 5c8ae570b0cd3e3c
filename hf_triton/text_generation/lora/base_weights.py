"""Whole weights in an adapter's file that are the base model's own: PEFT saves the base's head by
default beside an adapter that changes it.

Compares them with the files of the base; knows nothing of adapters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from safetensors import safe_open

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel


def is_of_base(served: ServedModel, modules: Any, name: str, tensor: torch.Tensor) -> bool:
    """Whether a tensor is the base's parameter of this name, in the dtype that it was saved in.
    ``modules`` are the base's, without weights.
    """
    try:
        asked = modules.get_parameter(name)
    except AttributeError:
        return False
    # Where a head is tied to the embeddings, the files have these alone.
    every = modules.named_parameters(remove_duplicate=False)
    names = [known for known, parameter in every if parameter is asked]
    found = next(_tensors(served, names), None)
    return found is not None and torch.equal(found.to(tensor.dtype), tensor)


def _tensors(served: ServedModel, names: Iterable[str]) -> Iterator[torch.Tensor]:
    """The base's tensors of these names, which files may have with or without a prefix."""
    try:
        files = sorted(model_files(served).glob("*.safetensors"))
    except LoadError:
        return
    for path in files:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118, it is no dictionary
                if any(f".{key}".endswith(f".{n}") or f".{n}".endswith(f".{key}") for n in names):
                    yield file.get_tensor(key)
