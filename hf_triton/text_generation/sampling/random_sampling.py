"""Draws tokens from logits, for rows that each have their own temperature, filters and random
numbers.

Temperature, top-k, top-p, min-p, then sampling: transformers' order. Each token takes one uniform
number from the sequence's own generator and inverts the cumulative distribution in the order of the
vocabulary. Filters are thresholds on scores: what a row keeps depends neither on the other rows nor
on the order in which a sort leaves equal scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from ..sequence.sampling_params import SamplingParams
from .columns import MOST_LOGITS, Column, Columns, DeviceColumns

_MINUS_INFINITY = float("-inf")
# On a CPU, top-p first looks at so many of the likeliest tokens: they nearly always hold its
# probability mass, and a top-k of 1,024 costs less than sorting the whole vocabulary.
_TOP = 1024

Drawn = tuple[int, SamplingParams, float]  # the row of the logits, options, uniform number


@dataclass(frozen=True)
class Draws:
    """Rows that are drawn together.

    ``numbers`` (4, drawn) are temperatures, uniform numbers, top_p and min_p; top_p and ``top_k``
    (drawn, 1) are 0 where they are off. ``most`` is the largest top_k; ``is_unbounded`` where a row
    has top_p without top_k.
    """

    rows: Column
    numbers: Column
    top_k: Column
    most: int
    has_top_p: bool
    is_unbounded: bool
    has_min_p: bool

    @classmethod
    def of(cls, drawn: Rows[Drawn], vocab_size: int, columns: Columns) -> Draws:
        """The draws of rows that all have filters, or all none; else it takes longer."""
        params = [params for _, params, _ in drawn]
        ks = [p.top_k if 0 < p.top_k < vocab_size else 0 for p in params]
        ps = [p.top_p if 0 < p.top_p < 1 else 0.0 for p in params]
        min_ps = [p.min_p for p in params]
        temperatures = [min(max(p.temperature, 1e-5), 1e30) for p in params]
        uniform = [number for _, _, number in drawn]
        return cls(
            rows=columns.ints([row for row, _, _ in drawn]),
            numbers=columns.floats([temperatures, uniform, ps, min_ps]),
            top_k=columns.ints([[k] for k in ks]),
            most=max(ks),
            has_top_p=any(ps),
            is_unbounded=any(p and not k for k, p in zip(ks, ps, strict=True)),
            has_min_p=any(min_ps),
        )

    def draw(self, logits: torch.Tensor, values: DeviceColumns) -> torch.Tensor:
        """logits (drawn, vocab) -> token ids (drawn,)."""
        temperatures, uniform, top_p, min_p = values[self.numbers].unsqueeze(2)
        scores = logits.float()
        # The largest score is 0 before the division: a tiny temperature gives -inf, never inf or
        # NaN.
        scores = scores - scores.amax(dim=-1, keepdim=True)
        scores = scores.div_(temperatures)
        weights = scores.exp()  # (drawn, vocab), 1 for the likeliest
        if self.most or self.is_unbounded:
            least = self._threshold(scores, weights, values[self.top_k], top_p)
            weights = weights.masked_fill_(scores < least, 0)
        if self.has_min_p:
            weights = weights.masked_fill_(weights < min_p, 0)
        return _invert(weights, uniform)

    def _threshold(
        self, scores: torch.Tensor, weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
    ) -> torch.Tensor:
        """(drawn, 1): the least score that top_k and then top_p keep; -inf where both are off."""
        vocab_size = scores.shape[-1]
        # What a GPU knows could not be asked without a wait, so it sorts all at once.
        enough = min(_TOP, vocab_size) if scores.device.type == "cpu" else vocab_size
        top = _descending(scores, max(self.most, enough if self.is_unbounded else 0))
        last = (top_k - 1).clamp_min(0)  # (drawn, 1)
        kth = top.gather(1, last).masked_fill(top_k == 0, _MINUS_INFINITY)
        if not self.has_top_p:
            return kth
        cumulative = top.exp().cumsum(dim=-1)
        total = cumulative.gather(1, last)
        if self.is_unbounded:
            total = torch.where(top_k > 0, total, weights.sum(dim=-1, keepdim=True))
        mass = top_p * total
        # A flat distribution over a wide vocabulary: what top-p keeps does not lie within ``top``.
        is_cut = self.is_unbounded and top.shape[-1] < vocab_size
        if is_cut and bool((cumulative[:, -1:] < mass).any()):
            top = _descending(scores, vocab_size)
            cumulative = top.exp().cumsum(dim=-1)
        # A token stays while the mass before it is below top_p's: the likeliest one always does.
        num_kept = 1 + (cumulative[:, :-1] < mass).sum(dim=-1, keepdim=True)
        least = top.gather(1, num_kept - 1)
        return torch.where(top_p > 0, torch.maximum(kth, least), kth)


def grouped(drawn: Rows[Drawn], vocab_size: int) -> Iterator[Rows[Drawn]]:
    """Those with filters and those without apart, and so few together that their scores take little
    memory.
    """
    at_once = max(1, MOST_LOGITS // vocab_size)
    for filters in (False, True):
        alike = [one for one in drawn if one[1].filters == filters]
        for first in range(0, len(alike), at_once):
            yield alike[first : first + at_once]


def _descending(scores: torch.Tensor, num: int) -> torch.Tensor:
    """(rows, num): the largest of each row."""
    if num < scores.shape[-1]:
        return scores.topk(num, dim=-1).values
    return scores.sort(dim=-1, descending=True).values


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``uniform`` (rows, 1) of the row's; never
    one of weight 0.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    below_total = total.nextafter(torch.zeros_like(total))
    threshold = torch.minimum(uniform * total, below_total)
    column = torch.searchsorted(cumulative, threshold, right=True)
    return column.squeeze(1).clamp_max(weights.shape[-1] - 1)  # a row of NaN has no such column
