"""Steps of attention over pages, with what they are to compute in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from hf_triton.text_generation.forward.gpu import ops  # noqa: F401  (defines the operators)
from hf_triton.text_generation.memory.pages import PAGE_SIZE

OPS = torch.ops.hf_triton


class Layer(NamedTuple):
    """Query heads, key heads, and the numbers of a key and of a value."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int


class Rule(NamedTuple):
    """What attention leaves out, and adds: 0 is none."""

    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False


PLAIN = Rule()


class Step:
    """Sequences of ``counts`` tokens that attend to ``lengths``, over pages in random order.

    What is nobody's is NaN: other pages, what lies behind a sequence's end, padding's page 0.
    """

    def __init__(
        self,
        counts: Sequence[int],
        lengths: Sequence[int],
        layer: Layer,
        dtype: torch.dtype,
        device: torch.device,
        num_pads: int = 0,
        seed: int = 0,
    ) -> None:
        self.counts, self.given, self.layer = list(counts), list(lengths), layer
        self._random = torch.Generator(device=device).manual_seed(seed)
        self._dtype, self._device = dtype, device
        self._numbers = [-(-length // PAGE_SIZE) for length in lengths]
        num_tokens, width = sum(counts) + num_pads, layer.heads * layer.key_dim
        # Queries lie in joint products, as in the engine.
        wide = self._normal(num_tokens, width + 2 * layer.kv_heads * layer.key_dim)
        self.q = wide[:, :width].unflatten(1, (layer.heads, layer.key_dim))
        self.sinks = self._normal(layer.heads)
        self._lay_out(num_pads)
        self._fill()

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._random, device=self._device).to(self._dtype)

    def _lay_out(self, num_pads: int) -> None:
        """In one buffer, as the engine has it: how its parts are aligned follows from the sizes."""
        total = sum(self._numbers)
        order = torch.randperm(total + 2, generator=self._random, device=self._device)
        starts = [0, *itertools.accumulate(self.counts)]
        pads = [0] * num_pads
        parts = (
            starts + [starts[-1]] * num_pads,
            self.given + pads,
            [0, *itertools.accumulate(self._numbers)][:-1] + pads,
            (1 + order[:total]).tolist(),
        )
        flat = list(itertools.chain(*parts))
        buffer = torch.tensor(flat, dtype=torch.int32, device=self._device)
        sizes = [len(part) for part in parts]
        self.starts, self.lengths, self.first_page, self.pages = buffer.split(sizes)

    def _fill(self) -> None:
        dims = (self.layer.key_dim, self.layer.value_dim)
        shape = (sum(self._numbers) + 3, PAGE_SIZE, self.layer.kv_heads)
        self.keys, self.values = (
            torch.full((*shape, dim), math.nan, dtype=self._dtype, device=self._device)
            for dim in dims
        )
        for length, pages in zip(self.given, self.pages.split(self._numbers), strict=True):
            for stored in (self.keys, self.values):
                part = stored[pages].flatten(0, 1)
                part[:length] = self._normal(length, *stored.shape[2:])
                stored[pages] = part.unflatten(0, (len(pages), PAGE_SIZE))

    def attend(self, rule: Rule = PLAIN) -> torch.Tensor:
        """By our kernel -> (tokens, heads, value_dim); padding's rows are anything."""
        found: torch.Tensor = OPS.paged_attention.default(
            *(self.q, self.keys, self.values, self.starts, self.lengths, self.first_page),
            *(self.pages, max(self.counts), self.layer.key_dim**-0.5, rule.window, rule.softcap),
            self.sinks if rule.has_sinks else None,
        )
        return found

    def expected(self, rule: Rule = PLAIN) -> torch.Tensor:
        """(tokens that are no padding, heads, value_dim), float64."""
        group = self.layer.heads // self.layer.kv_heads
        queries = self.q[: sum(self.counts)].double().split(self.counts)
        found = []
        pages_of = self.pages.long().split(self._numbers)
        for q, length, pages in zip(queries, self.given, pages_of, strict=True):
            k, v = (
                stored[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
                for stored in (self.keys, self.values)
            )
            scores = torch.einsum("thd,nhd->htn", q, k) * self.layer.key_dim**-0.5
            shares = self._scored(scores, rule).softmax(-1)[..., :length]
            found.append(torch.einsum("htn,nhd->thd", shares, v))
        return torch.cat(found)

    def _scored(self, scores: torch.Tensor, rule: Rule) -> torch.Tensor:
        """(heads, tokens, context) by the rule, with a column more for sinks."""
        count, length = scores.shape[1:]
        if rule.softcap:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        at = torch.arange(length - count, length, device=scores.device)[:, None]
        column = torch.arange(length, device=scores.device)
        hidden = column > at
        if rule.window:
            hidden |= column <= at - rule.window
        scores = scores.masked_fill(hidden, -math.inf)
        if not rule.has_sinks:
            return scores
        sink = self.sinks.double()[:, None, None].expand(-1, count, 1)
        return torch.cat([scores, sink], -1)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """||got - want|| / ||want||; infinite where a number is none."""
    if not bool(got.isfinite().all()):
        return math.inf
    norm = want.double().norm().clamp_min(1e-30)
    return float((got.double() - want.double()).norm() / norm)
