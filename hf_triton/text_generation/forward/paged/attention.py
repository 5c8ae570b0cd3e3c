"""Attention of a step's tokens over a cache in pages, in the place of a model's own
(runtime/attention.py). Linear layers and norms run over the row of all tokens; only here are
sequences told apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hf_triton.text_generation.memory.pages import num_pages_of

from .step import PagedStep

CHUNKED = "chunked_attention"  # among a configuration's ``layer_types``
MOST_NUMBERS = 2**25  # gathered at once, of keys; a longer step is computed piece by piece


@dataclass(frozen=True)
class AttentionRule:
    """A layer's scale, sliding window, soft cap, attention sinks (heads,), and the chunk of
    positions within which tokens see each other. 0 is none.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    chunk: int = 0

    @property
    def is_spelled_out(self) -> bool:
        """True if SDPA can't compute it."""
        return bool(self.softcap) or self.sinks is not None

    @property
    def reach(self) -> int:
        """Shorter sequences are seen whole; 0 without a window or chunk."""
        return self.window or self.chunk

    def oldest(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that tokens at ``positions`` see, given a window or chunk."""
        return positions - (positions % self.chunk if self.chunk else self.window - 1)


# Causal attention of a step's tokens, each to the earlier tokens of its own sequence. Takes q
# (num_tokens, heads, key_dim), keys and values (num_pages, page size, kv_heads, dim), with the
# step's own written already, all on the step's device; gives (num_tokens, heads, value_dim),
# anything for padding.
Attend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, PagedStep, AttentionRule], torch.Tensor
]


def row_attention(
    step: PagedStep,
    attend: Attend,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query (1, heads, num_tokens, key_dim), key and value (1, kv_heads, num_tokens, dim) -> (1,
    num_tokens, heads, dim); ``s_aux`` (heads,) are attention sinks. Writes keys and values where
    the ``step`` says. Ignores other arguments: what they change shows in the trial at load.
    """
    layer = step.layer_of(key)
    if layer is None:
        layer = int(module.layer_idx)
        step.write(layer, key, value)
    keys, values = step.cache.keys[layer], step.cache.values[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = AttentionRule(scale, sliding_window or 0, softcap or 0.0, s_aux, _chunk(module))
    out = attend(query[0].transpose(0, 1), keys, values, step.on(keys.device), rule)
    return out.unsqueeze(0), None


def _chunk(module: Any) -> int:
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None) or {}
    is_chunked = kinds and kinds[module.layer_idx] == CHUNKED
    return int(config.attention_chunk_size) if config and is_chunked else 0


def plain_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PagedStep, rule: AttentionRule
) -> torch.Tensor:
    """See ``Attend``. Gathers a sequence's pages for torch's own operators: right for every rule,
    dtype and device, so it is the reference, and runs where nothing else does. Waits for the step's
    numbers, so no CUDA graph can hold it.
    """
    out = q.new_zeros(q.shape[0], q.shape[1], values.shape[-1])
    starts, lengths = step.on_host
    num_decodes = next((i for i, start in enumerate(starts[1:]) if start != i + 1), len(lengths))
    per_token = keys.shape[2] * keys.shape[3]
    rows = max(1, MOST_NUMBERS // (per_token * max(lengths, default=1)))
    for first in range(0, num_decodes, rows):
        last = min(first + rows, num_decodes)
        out[first:last] = _decodes(q[first:last], keys, values, step, first, rule)
    for sequence in range(num_decodes, len(lengths)):
        start, end = starts[sequence : sequence + 2]
        if start < end:
            out[start:end] = attend_chunk(q[start:end], keys, values, step, sequence, rule)
    return out


def _decodes(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    step: PagedStep,
    first: int,
    rule: AttentionRule,
) -> torch.Tensor:
    """q (rows, heads, key_dim), a token each of the sequences from ``first`` on -> (rows, heads,
    value_dim). Query heads of a key head stand for tokens, so keys are never repeated.
    """
    last, (rows, heads, _) = first + len(q), q.shape
    num_pages = num_pages_of(max(step.on_host[1][first:last]), keys.shape[1])
    lengths = step.lengths[first:last, None, None]
    pages = step.block_table[first:last, :num_pages]
    columns = torch.arange(num_pages * keys.shape[1], device=q.device)
    visible = columns < lengths  # (rows, 1, columns)
    if rule.reach:
        visible = visible & (columns >= rule.oldest(lengths - 1))
    k, v = (stored[pages].flatten(1, 2) for stored in (keys, values))
    for gathered in (k, v):  # what others left there may be NaN, which a mask does not hide
        gathered.masked_fill_(~(columns < lengths).transpose(1, 2).unsqueeze(-1), 0)
    folded = q.reshape(rows, keys.shape[2], -1, q.shape[-1])  # (rows, kv_heads, heads of one, dim)
    mask = visible.unsqueeze(1).expand(-1, 1, folded.shape[2], -1)
    return _attend(folded, k.transpose(1, 2), v.transpose(1, 2), mask, rule).reshape(
        rows, heads, -1
    )


def attend_chunk(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    step: PagedStep,
    sequence: int,
    rule: AttentionRule,
) -> torch.Tensor:
    """q (chunk, heads, key_dim), the last of a sequence's tokens -> (chunk, heads, value_dim)."""
    length = step.on_host[1][sequence]
    pages = step.block_table[sequence, : num_pages_of(length, keys.shape[1])]
    k, v = (
        stored[pages].flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0)
        for stored in (keys, values)
    )
    begin, blocks = length - len(q), step.blocks_of(sequence)
    if not (begin or blocks or rule.is_spelled_out or 0 < rule.reach < length):
        whole = q.transpose(0, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(
            whole, k, v, is_causal=True, scale=rule.scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)
    parts, rows = [], max(1, MOST_NUMBERS // (length * q.shape[1]))
    for start in range(0, len(q), rows):
        some = q[start : start + rows]
        visible = _visible(begin + start, len(some), length, rule, blocks, q.device)
        parts.append(_attend_masked(some, k, v, visible, rule))
    return torch.cat(parts)


def _visible(
    begin: int,
    num_tokens: int,
    length: int,
    rule: AttentionRule,
    blocks: list[tuple[int, int]],
    device: torch.device,
) -> torch.Tensor:
    """(tokens, length) bool: the columns that each token from position ``begin`` on sees."""
    positions = torch.arange(begin, begin + num_tokens, device=device).unsqueeze(1)
    columns = torch.arange(length, device=device)
    visible = columns <= positions
    if rule.reach:
        visible = visible & (columns >= rule.oldest(positions))
    for first, end in blocks:
        visible[max(0, first - begin) : max(0, end - begin), first:end] = True
    return visible


def _attend_masked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, rule: AttentionRule
) -> torch.Tensor:
    """q (tokens, heads, dim), k and v (1, kv_heads, columns, dim), visible (tokens, columns) ->
    (tokens, heads, value_dim).
    """
    if q.device.type == "cpu" and not rule.is_spelled_out:
        rows = q.transpose(0, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(
            rows, k, v, attn_mask=visible, scale=rule.scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)
    # With a mask and ``enable_gqa`` a GPU has no kernel but the plain one, which repeats the keys
    # and keeps all scores in float32: the query heads of a key head stand for tokens.
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    folded = q.transpose(0, 1).reshape(1, kv_heads, heads // kv_heads * tokens, dim)
    mask = visible.repeat(heads // kv_heads, 1)[None, None]
    out = _attend(folded, k, v, mask, rule)
    return out.reshape(heads, tokens, -1).transpose(0, 1)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, rule: AttentionRule
) -> torch.Tensor:
    """Softmax(q k^T) v: q (rows, kv_heads, heads of a key head * tokens, dim). Spelled out for soft
    caps, and for sinks: one more score of each head that weighs no value
    (https://arxiv.org/abs/2508.10925, section 2.2).
    """
    if not rule.is_spelled_out:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=rule.scale)
    scores = torch.matmul(q * rule.scale, k.transpose(-1, -2))
    if rule.softcap:  # https://arxiv.org/abs/2408.00118, section 2
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores.float().masked_fill(~visible, float("-inf"))
    if rule.sinks is not None:
        sinks = rule.sinks.float().view(1, q.shape[1], -1, 1)
        sinks = sinks.repeat_interleave(q.shape[2] // sinks.shape[2], dim=2)
        scores = torch.cat([scores, sinks.expand(*scores.shape[:3], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]]
    return torch.matmul(weights.to(q.dtype), v)
