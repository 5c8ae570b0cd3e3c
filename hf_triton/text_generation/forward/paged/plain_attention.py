"""Attention over pages in torch's own operators: gathers a sequence's pages and attends to them.

Right for every rule, dtype and device, and slow: what other backends are compared with, and what
runs where there is none. Waits for the step's numbers, so no CUDA graph can hold it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_triton.text_generation.memory.pages import num_pages_of

from ..transformers.packed_attention import AttentionRule
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
            out[start:end] = _chunk(q[start:end], keys, values, step, sequence, rule)
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
    longest -> (rows, heads, value_dim).
    """
    last = first + len(q)
    num_pages = num_pages_of(max(step.on_host[1][first:last]), keys.shape[1])
    lengths = step.lengths[first:last, None, None]
    pages = step.block_table[first:last, :num_pages]
    columns = torch.arange(num_pages * keys.shape[1], device=q.device)
    visible = columns < lengths  # (rows, 1, columns)
    if rule.window:
        visible &= columns >= lengths - rule.window
    k, v = (stored[pages].flatten(1, 2) for stored in (keys, values))
    for gathered in (k, v):  # what others left there may be NaN, which a mask does not hide
        gathered.masked_fill_(~(columns < lengths).transpose(1, 2).unsqueeze(-1), 0)
    return _attention(q.unsqueeze(1), k, v, visible, rule)[:, 0]


def _chunk(
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
    k, v = (stored[pages].flatten(0, 1)[None, :length] for stored in (keys, values))
    columns = torch.arange(length, device=q.device)
    out = []
    rows = max(1, _MOST_NUMBERS // (length * q.shape[1]))
    for start in range(0, len(q), rows):
        some = q[start : start + rows]
        positions = columns[length - len(q) + start :][: len(some), None]
        visible = columns <= positions  # (chunk, length)
        if rule.window:
            visible &= columns > positions - rule.window
        out.append(_attention(some[None], k, v, visible[None], rule)[0])
    return torch.cat(out)


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, rule: AttentionRule
) -> torch.Tensor:
    """q (rows, tokens, heads, dim), k and v (rows, columns, kv_heads, dim), visible (rows, tokens,
    columns) bool -> (rows, tokens, heads, value_dim).
    """
    rows, tokens, heads, _ = q.shape
    kv_heads = k.shape[2]
    grouped = q.view(rows, tokens, kv_heads, heads // kv_heads, -1).permute(0, 2, 3, 1, 4)
    folded = grouped.flatten(2, 3)  # (rows, kv_heads, heads of one key head * tokens, dim)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    mask = visible[:, None].repeat(1, 1, heads // kv_heads, 1)
    if rule.softcap or rule.sinks is not None:
        out = _spelled_out(folded, k, v, mask, rule)
    else:
        out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=rule.scale)
    out = out.view(rows, kv_heads, heads // kv_heads, tokens, -1)
    return out.permute(0, 3, 1, 2, 4).reshape(rows, tokens, heads, -1)


def _spelled_out(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, rule: AttentionRule
) -> torch.Tensor:
    """With what SDPA does not take: soft caps, and sinks, which are one more score of each head
    that weighs no value (https://arxiv.org/abs/2508.10925, section 2.2).
    """
    scores = rule.scores(torch.matmul(q * rule.scale, k.transpose(-1, -2))).float()
    scores = scores.masked_fill(~mask, float("-inf"))
    if rule.sinks is not None:
        kv_heads, per_head = q.shape[1], q.shape[2]
        sinks = rule.sinks.float().view(1, kv_heads, -1, 1)
        sinks = sinks.repeat_interleave(per_head // sinks.shape[2], dim=2)
        scores = torch.cat([scores, sinks.expand(*scores.shape[:3], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]]
    return torch.matmul(weights.to(q.dtype), v)
