"""Draws tokens from logits, for rows that each have their own temperature, filters and random
number: temperature, top-k, top-p, min-p, as transformers, then the inverted cumulative distribution
in the order of the vocabulary. Filters are thresholds on scores: what a row keeps depends neither
on other rows nor on how a sort leaves equal scores. A CPU does it in one compiled loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Rows
from functools import cache

import torch

from hf_triton.runtime.devices.device import to_device
from hf_triton.runtime.kernels.compiled_loops import Kernel, load_kernel, team_of

from ..sequence.sampling_params import SamplingParams
from .token_logprobs import MOST_LOGITS

_MINUS_INFINITY = float("-inf")

Drawn = tuple[int, SamplingParams, float]  # the row of the logits, options, uniform number


def draw(logits: torch.Tensor, drawn: Rows[Drawn]) -> torch.Tensor:
    """logits (rows, vocab) -> token ids (drawn,); where the maximum is not finite, its place."""
    kernel = draw_kernel(logits.dtype) if logits.device.type == "cpu" else None
    if kernel is not None and logits.is_contiguous():
        return _Draws(drawn, logits).draw_in_a_loop(kernel)
    token_ids = torch.empty(len(drawn), dtype=torch.int64, device=logits.device)
    for group in _grouped(drawn, logits.shape[-1]):
        draws = _Draws([drawn[at] for at in group], logits)
        token_ids[to_device(torch.tensor(group), logits.device)] = draws.draw_by_operators()
    return token_ids


class _Draws:
    """Rows that are drawn together. ``_numbers`` (4, drawn) are temperatures, uniform numbers,
    top_p and min_p; top_p and ``_top_k`` (drawn, 1) are 0 where they are off. ``_most`` is the
    largest top_k; ``_is_unbounded`` where a row has top_p without top_k.
    """

    def __init__(self, drawn: Rows[Drawn], logits: torch.Tensor) -> None:
        params = [params for _, params, _ in drawn]
        size = logits.shape[-1]
        ks = [p.top_k if 0 < p.top_k < size else 0 for p in params]
        ps = [p.top_p if 0 < p.top_p < 1 else 0.0 for p in params]
        min_ps = [p.min_p for p in params]
        temperatures = [min(max(p.temperature, 1e-5), 1e30) for p in params]
        uniform = [number for _, _, number in drawn]
        whole = torch.tensor([[row for row, _, _ in drawn], ks])
        numbers = torch.tensor([temperatures, uniform, ps, min_ps])
        self._logits = logits
        self._rows, self._top_k = to_device(whole, logits.device)
        self._numbers = to_device(numbers, logits.device)
        self._top_k = self._top_k.unsqueeze(1)
        self._most, self._has_top_p, self._has_min_p = max(ks), any(ps), any(min_ps)
        self._is_unbounded = any(p and not k for k, p in zip(ks, ps, strict=True))

    def draw_in_a_loop(self, kernel: Kernel) -> torch.Tensor:
        rows, size = self._rows, self._logits.shape[-1]
        team = team_of(torch.get_num_threads())
        out = torch.empty(len(rows), dtype=torch.int64)
        scratch = torch.empty(team.num_threads, 4 * size)
        read = (self._logits, rows, self._numbers, self._top_k)
        addresses = [tensor.data_ptr() for tensor in (*read, out, scratch)]
        team.run(kernel, len(rows), size, *addresses)
        return out

    def draw_by_operators(self) -> torch.Tensor:
        temperatures, uniform, top_p, min_p = self._numbers.unsqueeze(2)
        are_all = len(self._rows) == len(self._logits)
        own = self._logits if are_all else self._logits[self._rows]
        scores = own.float()  # (drawn, vocab)
        # The largest score is 0 before the division: a tiny temperature gives -inf, never inf or
        # NaN.
        largest, place = scores.max(dim=-1, keepdim=True)
        scores = (scores - largest).div_(temperatures)
        weights = scores.exp()  # (drawn, vocab), 1 for the likeliest
        if self._most or self._is_unbounded:
            least = self._threshold(scores, weights, self._top_k, top_p)
            weights = weights.masked_fill_(scores < least, 0)
        if self._has_min_p:
            weights = weights.masked_fill_(weights < min_p, 0)
        return torch.where(largest - largest == 0, _invert(weights, uniform), place).squeeze(1)

    def _threshold(
        self, scores: torch.Tensor, weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
    ) -> torch.Tensor:
        """(drawn, 1): the least score that top_k and then top_p keep; -inf where both are off."""
        if self._is_unbounded:  # whether fewer are enough could not be asked without a wait
            top = scores.sort(dim=-1, descending=True).values
        else:
            top = scores.topk(self._most, dim=-1).values
        last = (top_k - 1).clamp_min(0)  # (drawn, 1)
        kth = top.gather(1, last).masked_fill(top_k == 0, _MINUS_INFINITY)
        if not self._has_top_p:
            return kth
        cumulative = top.exp().cumsum(dim=-1)
        total = cumulative.gather(1, last)
        if self._is_unbounded:
            total = torch.where(top_k > 0, total, weights.sum(dim=-1, keepdim=True))
        # A token stays while the mass before it is below top_p's: the likeliest one always does.
        num_kept = 1 + (cumulative[:, :-1] < top_p * total).sum(dim=-1, keepdim=True)
        least = top.gather(1, num_kept - 1)
        return torch.where(top_p > 0, torch.maximum(kth, least), kth)


def load_loops(device: torch.device, dtype: torch.dtype) -> None:
    """Compiles what draws from logits of a model on ``device``, or loads it: no request waits."""
    if device.type == "cpu":
        for one in {torch.float32, dtype}:
            draw_kernel(one)


@cache
def draw_kernel(dtype: torch.dtype) -> Kernel | None:
    """The compiled loop; None for numbers that it does not read, and without Numba."""
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    try:
        return load_kernel("draw", dtype)
    except ImportError:
        return None


def _grouped(drawn: Rows[Drawn], vocab_size: int) -> Iterator[list[int]]:
    """The places of those with filters apart from others, few enough to take little memory."""
    at_once = max(1, MOST_LOGITS // vocab_size)
    for filters in (False, True):
        alike = [at for at, one in enumerate(drawn) if one[1].filters == filters]
        for first in range(0, len(alike), at_once):
            yield alike[first : first + at_once]


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first column, (rows, 1), whose cumulative weight exceeds ``uniform`` (rows, 1)."""
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    below_total = total.nextafter(torch.zeros_like(total))
    threshold = torch.minimum(uniform * total, below_total)
    column = torch.searchsorted(cumulative, threshold, right=True)
    return column.clamp_max(weights.shape[-1] - 1)  # a row of NaN has no such column
