"""Attention over pages in torch's own operators: gathers a sequence's pages and attends to them.

Right for every rule, dtype and device: what other ways are compared with, and what runs where there
is none. Waits for the step's numbers, so no CUDA graph can hold it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_triton.text_generation.memory.pages import num_pages_of

from .attention import AttentionRule
from .step import PagedStep

_MOST_NUMBERS = 2**25  # gathered at once, of keys; a longer step is computed piece by piece


def plain_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PagedStep, rule: AttentionRule
) -> torch.Tensor:
    """See ``Attend``."""
    out = q.new_zeros(q.shape[0], q.shape[1], values.shape[-1])
    starts, lengths = step.on_host
    num_decodes = next((i for i, start in enumerate(starts[1:]) if start != i + 1), len(lengths))
    per_token = keys.shape[2] * keys.shape[3]
    rows = max(1, _MOST_NUMBERS // (per_token * max(lengths, default=1)))
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
    """q (rows, heads, key_dim), one token each of the sequences from ``first`` on, padded to the
    longest -> (rows, heads, value_dim). The query heads of a key head stand for tokens, so keys are
    never repeated.
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
    parts, rows = [], max(1, _MOST_NUMBERS // (length * q.shape[1]))
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
    """(tokens, length) bool: the columns that each token from position ``begin`` on may look at."""
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
    """Softmax(q k^T) v: q (rows, kv_heads, heads of one key head * tokens, dim). Spelled out for
    what SDPA does not take: soft caps, and sinks, which are one more score of each head that weighs
    no value (https://arxiv.org/abs/2508.10925, section 2.2).
    """
    if not rule.is_spelled_out:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=rule.scale)
    scores = rule.scores(torch.matmul(q * rule.scale, k.transpose(-1, -2))).float()
    scores = scores.masked_fill(~visible, float("-inf"))
    if rule.sinks is not None:
        sinks = rule.sinks.float().view(1, q.shape[1], -1, 1)
        sinks = sinks.repeat_interleave(q.shape[2] // sinks.shape[2], dim=2)
        scores = torch.cat([scores, sinks.expand(*scores.shape[:3], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]]
    return torch.matmul(weights.to(q.dtype), v)
