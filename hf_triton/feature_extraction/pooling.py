"""The hidden states of a text's tokens to one vector; knows nothing of requests.

Source: sentence-transformers, sentence_transformer/modules/pooling.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F

# (tokens, hidden) and the place of each token in its text, from 1 on -> (hidden,)
_Pool = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


class Pooling:
    """One mode, or several whose vectors are put one after the other."""

    def __init__(self, modes: Sequence[str]) -> None:
        self.modes = tuple(modes)
        self._pools = [_POOLS[mode] for mode in modes]

    def positions(self, num_tokens: int, first: int) -> tuple[int, ...] | None:
        """The tokens that are looked at, of those from ``first`` on; None: all of the text's."""
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
    """As ``_mean`` of each, in one call: each call lets another thread have the interpreter."""
    states = torch.cat([*texts]).float()
    lengths = map(len, texts)
    starts = torch.tensor([*accumulate(lengths, initial=0)][:-1], device=states.device)
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
    """Later tokens weigh more: each as much as its place in the text."""
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
