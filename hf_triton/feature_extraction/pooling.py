"""The hidden states of a text's tokens to one vector, and sentence-transformers' modules after that
(Dense, LayerNorm, Normalize), with their weights; knows nothing of requests.

Source: sentence-transformers, sentence_transformer/modules/pooling.py and layer_norm.py,
base/modules/dense.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from hf_triton.encoder.sentence_transformers.keys import SPLADE_MODULE
from hf_triton.encoder.sentence_transformers.reading import Step, activation
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.untrusted_files import within_files

# (tokens, hidden) and the place of each token in its text, from 1 on -> (hidden,)
_Pool = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


class Pooling:
    """One mode, or several whose vectors are concatenated."""

    def __init__(self, modes: Sequence[str]) -> None:
        self.modes = tuple(modes)
        self._pools = [_POOLS[mode] for mode in modes]

    def positions(self, num_tokens: int, first: int) -> tuple[int, ...] | None:
        """The tokens to pool, from ``first`` on; None: all of the text's."""
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


class SpladePooling:
    """The scores of the vocabulary at each token to one weight of each word."""

    modes = ("splade",)  # of one vector

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises LoadError for a strategy or an activation that is unknown."""
        known = {"pooling_strategy": ("max", "sum"), "activation_function": ("relu", "log1p_relu")}
        for key, words in known.items():
            if config.get(key, words[0]) not in words:
                got = f"got {config[key]!r}, known: {', '.join(words)}"
                raise LoadError(f"{SPLADE_MODULE}: {key}: {got}")
        self._sums = config.get("pooling_strategy") == "sum"
        self._logs_twice = config.get("activation_function") == "log1p_relu"

    def positions(self, num_tokens: int, first: int) -> None:
        return None  # all

    def __call__(self, texts: Sequence[torch.Tensor], _: object = None) -> torch.Tensor:
        """(tokens, vocabulary) of each text, of any dtype -> (texts, vocabulary) float32."""
        return torch.stack([self._pooled(text) for text in texts])

    def _pooled(self, scores: torch.Tensor) -> torch.Tensor:
        # Logarithms keep the order, so the largest score has the largest.
        weights = (scores if self._sums else scores.amax(dim=0)).float().relu().log1p()
        weights = weights.log1p() if self._logs_twice else weights
        return weights.sum(dim=0) if self._sums else weights


def _means(texts: Sequence[torch.Tensor]) -> torch.Tensor:
    if texts[0].device.type == "cpu":
        # By NumPy: each operator of torch would give other threads the interpreter's lock.
        return torch.from_numpy(np.stack([text.float().numpy().mean(axis=0) for text in texts]))
    states = torch.cat([*texts]).float()
    starts = torch.tensor([*accumulate(map(len, texts), initial=0)][:-1], device=states.device)
    rows = torch.arange(len(states), device=states.device)
    return F.embedding_bag(rows, states, starts, mode="mean")


def _weighted_mean(tokens: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """A mean in which each token's weight is its position in the text."""
    weights = torch.tensor(places, dtype=torch.float32, device=tokens.device)
    return (weights / weights.sum()) @ tokens


_POOLS: dict[str, _Pool] = {
    "cls": lambda tokens, _: tokens[0],
    "lasttoken": lambda tokens, _: tokens[-1],
    "max": lambda tokens, _: tokens.amax(dim=0),
    "mean": lambda tokens, _: tokens.mean(dim=0),
    "mean_sqrt_len_tokens": lambda tokens, _: tokens.sum(dim=0) / len(tokens) ** 0.5,
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


class Normalize(nn.Module):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, p=2.0, dim=-1)


def module_of(step: Step, size: int) -> tuple[nn.Module, int]:
    """A step's module in float32 with its weights, and the size of its output; ``size`` is that of
    its input. Raises LoadError where its configuration or weights are missing, broken, or do not
    fit.
    """
    if step.kind == "Normalize":
        return Normalize(), size
    where, is_dense = step.folder.name, step.kind == "Dense"
    size_in, size_out = ("in_features", "out_features") if is_dense else ("dimension", "dimension")
    try:
        given, answered = int(step.config[size_in]), int(step.config[size_out])
        with within_files(step.folder):
            module = Dense(step.config) if is_dense else nn.LayerNorm(given)
    except LoadError as error:
        raise LoadError(f"{where}/{error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise LoadError(f"{where}/config.json: {reason(error)}: missing or not a number") from error
    if given != size:
        raise LoadError(f"{where}/config.json: {size_in} is {given}, but vectors of {size} come in")
    safetensors, pickled = (step.folder / f for f in ("model.safetensors", "pytorch_model.bin"))
    try:
        if safetensors.is_file():
            weights = load_file(safetensors)
        else:
            weights = torch.load(pickled, map_location="cpu", weights_only=True)
        if step.is_inside:
            weights = {name: weights[name] for name in module.state_dict()}
        module.load_state_dict({k.removeprefix("norm."): v for k, v in weights.items()})
    except Exception as error:
        # Missing files, pickles with code in them, other shapes: the operator gets one line.
        raise LoadError(f"{where}: {type(error).__name__}: {reason(error)}") from error
    return module.float().eval().requires_grad_(False), answered
