"""Samples tokens from logits, for rows that each have their own temperature, filters and random
numbers.

Temperature, top-k, top-p, min-p, then sampling: transformers' order. Each token takes one uniform
number from the sequence's own generator and inverts the cumulative distribution in the order of the
vocabulary. Filters are thresholds on scores: what a row keeps depends neither on the other rows nor
on the order in which a sort leaves equal scores.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from ..sequence.sampling_params import SamplingParams
from ..sequence.sequence import Sequence

_MINUS_INFINITY = float("-inf")
# top-p first looks at so many of the likeliest tokens: they nearly always hold its probability
# mass, and a top-k of 1,024 costs less than sorting the whole vocabulary.
_TOP = 1024


def sample_rows(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """logits (rows, vocab) -> sampled token ids (rows,)."""
    device = logits.device
    temperatures = torch.tensor([s.params.temperature for s in sequences], device=device)
    uniform = torch.tensor([s.random.random() for s in sequences], device=device)
    scores = logits.float()
    # The largest score is 0 before the division: a tiny temperature gives -inf, never inf or NaN.
    scores = scores - scores.amax(dim=-1, keepdim=True)
    scores = scores.div_(temperatures.clamp(1e-5, 1e30).unsqueeze(1))
    weights = scores.exp()  # (rows, vocab), 1 for the likeliest
    filtered = [row for row, sequence in enumerate(sequences) if sequence.params.filters]
    if len(filtered) == len(sequences):
        weights = _filtered(scores, weights, sequences)
    elif filtered:
        rows = torch.tensor(filtered, device=device)
        chosen = [sequences[row] for row in filtered]
        weights[rows] = _filtered(scores[rows], weights[rows], chosen)
    return _invert(weights, uniform)


def _filtered(
    scores: torch.Tensor, weights: torch.Tensor, sequences: Rows[Sequence]
) -> torch.Tensor:
    """weights (rows, vocab) with 0 for what top_k, top_p or min_p leave out."""
    params = [sequence.params for sequence in sequences]
    if any(p.top_k > 0 or 0 < p.top_p < 1 for p in params):
        weights = weights.masked_fill_(scores < _threshold(scores, weights, params), 0)
    if any(p.min_p > 0 for p in params):
        min_p = torch.tensor([p.min_p for p in params], device=scores.device).unsqueeze(1)
        weights = weights.masked_fill_(weights < min_p, 0)
    return weights


def _threshold(
    scores: torch.Tensor, weights: torch.Tensor, params: Rows[SamplingParams]
) -> torch.Tensor:
    """(rows, 1): the least score that top_k and then top_p keep; -inf where both are off."""
    vocab_size, device = scores.shape[-1], scores.device
    ks = [p.top_k if 0 < p.top_k < vocab_size else 0 for p in params]
    ps = [p.top_p if 0 < p.top_p < 1 else 0.0 for p in params]
    unbounded = any(p and not k for k, p in zip(ks, ps, strict=True))
    width = max(1, *ks, min(_TOP, vocab_size) if unbounded else 0)
    top = scores.topk(width, dim=-1).values  # (rows, width), descending
    top_k = torch.tensor(ks, device=device).unsqueeze(1)
    last = (top_k - 1).clamp_min(0)  # (rows, 1)
    kth = top.gather(1, last).masked_fill(top_k == 0, _MINUS_INFINITY)
    if not any(ps):
        return kth
    top_p = torch.tensor(ps, device=device).unsqueeze(1)
    cumulative = top.exp().cumsum(dim=-1)
    total = cumulative.gather(1, last)
    if unbounded:
        total = torch.where(top_k > 0, total, weights.sum(dim=-1, keepdim=True))
    mass = top_p * total
    # A flat distribution over a wide vocabulary: what top-p keeps does not lie within ``top``.
    if width < vocab_size and bool(((top_p > 0) & (cumulative[:, -1:] < mass)).any()):
        top = scores.sort(dim=-1, descending=True).values
        cumulative = top.exp().cumsum(dim=-1)
    # A token stays while the mass before it is below top_p's: the likeliest one always does.
    num_kept = 1 + (cumulative[:, :-1] < mass).sum(dim=-1, keepdim=True)
    least = top.gather(1, num_kept - 1)
    return torch.where(top_p > 0, torch.maximum(kth, least), kth)


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first column whose cumulative weight exceeds ``uniform`` (rows,) of the row's; never one
    of weight 0.
    """
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    below_total = total.nextafter(torch.zeros_like(total))
    threshold = torch.minimum(uniform.unsqueeze(1) * total, below_total)
    column = torch.searchsorted(cumulative, threshold, right=True)
    return column.squeeze(1).clamp_max(weights.shape[-1] - 1)  # a row of NaN has no such column
