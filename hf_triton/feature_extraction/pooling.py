"""The hidden states of a text's tokens to one vector, and sentence-transformers' modules after that
(Dense, LayerNorm, Normalize), with their weights; knows nothing of requests.

Source: sentence-transformers, sentence_transformer/modules/pooling.py and layer_norm.py,
base/modules/dense.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hf_triton.encoder.sentence_transformers.activations import activation
from hf_triton.encoder.sentence_transformers.reading import Step
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.declared_size import within_files

# (tokens, hidden) and the place of each token in its text, from 1 on -> (hidden,)
_Pool = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


class Pooling:
    """One mode, or several whose vectors are concatenated."""

    def __init__(self, modes: Sequence[str]) -> None:
        self.modes = tuple(modes)
        self._pools = [_POOLS[mode] for mode in modes]

    def positions(self, num_tokens: int, first: int) -> tuple[int, ...] | None:
        """The positions to pool, starting at ``first``; None: all of the text's."""
        if self.modes == ("cls",):
            return (first,)
        if self.modes == ("lasttoken",):
            return (num_tokens - 1,)
        return tuple(range(first, num_tokens)) if first else None

    def __call__(
        self, texts: Sequence[torch.Tensor], positions: Sequence[Sequence[int] | None]
    ) -> torch.Tensor:
        """(len(positions), hidden) of each text, of any dtype -> (texts, len(modes) * hidden)
        float32.
        """
        if len(texts) > 1 and self.modes == ("mean",):
            return _means(texts)
        if self.modes in (("cls",), ("lasttoken",)):
            return torch.cat([*texts]).float()
        return torch.stack([*map(self._pooled, texts, positions)])

    def _pooled(self, tokens: torch.Tensor, positions: Sequence[int] | None) -> torch.Tensor:
        places = range(1, len(tokens) + 1) if positions is None else [p + 1 for p in positions]
        states = tokens.float()
        pooled = [pool(states, places) for pool in self._pools]
        return torch.cat(pooled) if len(pooled) > 1 else pooled[0]


def _means(texts: Sequence[torch.Tensor]) -> torch.Tensor:
    """``_mean`` of each text."""
    if texts[0].device.type == "cpu":
        # By NumPy: each operator of torch would give other threads the interpreter's lock.
        return torch.from_numpy(np.stack([text.float().numpy().mean(axis=0) for text in texts]))
    states = torch.cat([*texts]).float()
    starts = torch.tensor([*accumulate(map(len, texts), initial=0)][:-1], device=states.device)
    rows = torch.arange(len(states), device=states.device)
    return F.embedding_bag(rows, states, starts, mode="mean")


def _cls(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    return tokens[0]


def _last(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    return tokens[-1]


def _max(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    return tokens.amax(dim=0)


def _mean(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    return tokens.mean(dim=0)


def _mean_sqrt_len(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    found: torch.Tensor = tokens.sum(dim=0) / len(tokens) ** 0.5
    return found


def _weighted_mean(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """A mean in which each token's weight is its position in the text."""
    weights = torch.tensor(places, dtype=torch.float32, device=tokens.device)
    return (weights / weights.sum()) @ tokens


_POOLS: dict[str, _Pool] = {
    "cls": _cls,
    "lasttoken": _last,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
}


class Dense(nn.Module):
    """A linear layer with an activation, and perhaps its input added."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        size_in, size_out = int(config["in_features"]), int(config["out_features"])
        self.linear = nn.Linear(size_in, size_out, bias=bool(config.get("bias", True)))
        self.activation = activation(
            "activation_function", config.get("activation_function", "torch.nn.Tanh")
        )
        self.adds_input = bool(config.get("use_residual", False))
        if self.adds_input and size_in != size_out:
            self.residual: nn.Module = nn.Linear(size_in, size_out, bias=False)
        else:
            self.residual = nn.Identity()

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(n, in_features) -> (n, out_features)."""
        found: torch.Tensor = self.activation(self.linear(vectors))
        return found + self.residual(vectors) if self.adds_input else found


class LayerNorm(nn.Module):
    """torch's LayerNorm with the attribute name of the weights' file."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(int(config["dimension"]))

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(n, dimension) -> the same shape."""
        found: torch.Tensor = self.norm(vectors)
        return found


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """(n, size) -> the same shape."""
        return nn.functional.normalize(vectors, p=2.0, dim=-1)


def module_of(step: Step, size: int) -> tuple[nn.Module, int]:
    """A step's module in float32 with its weights, and the size of what it answers; ``size`` is
    the size of what it is given.

    Raises:
        LoadError: its configuration or its weights are missing, broken, or of another size.
    """
    if step.kind == "Normalize":
        return Normalize(), size
    kind, size_in, size_out = {
        "Dense": (Dense, "in_features", "out_features"),
        "LayerNorm": (LayerNorm, "dimension", "dimension"),
    }[step.kind]
    where = step.folder.name
    try:
        with within_files(step.folder):
            module = kind(step.config)
        given, answered = int(step.config[size_in]), int(step.config[size_out])
    except LoadError as error:
        raise LoadError(f"{where}/{error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise LoadError(f"{where}/config.json: {reason(error)} is missing or no number") from error
    if given != size:
        raise LoadError(f"{where}/config.json: {size_in} is {given}, but vectors of {size} come in")
    _load_weights(module, step.folder)
    return module.float().eval().requires_grad_(False), answered


def _load_weights(module: nn.Module, folder: Path) -> None:
    safetensors, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        if safetensors.is_file():
            from safetensors.torch import load_file

            weights = load_file(safetensors)
        else:
            weights = torch.load(pickled, map_location="cpu", weights_only=True)
        module.load_state_dict(weights)
    except Exception as error:
        # Missing files, pickles with code in them, other shapes: the operator gets one line.
        raise LoadError(f"{folder.name}: {type(error).__name__}: {reason(error)}") from error
