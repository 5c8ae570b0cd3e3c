"""Attention over packed tokens: one ``[1, num_tokens]`` row holds the decodes of all sequences and
prompt chunks.

In the place of a model's own attention (runtime/attention.py): its linear layers and norms run over
the packed row without padding. Only here are sequences told apart: each token writes its key and
value at its own slot and position and attends to its own sequence.

Decodes read the cache as a view, all rows up to the longest; the query heads that share a key head
are folded into the query length, so keys are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from hf_triton.text_generation.memory.kv_cache import KVCache

CHUNKED = "chunked_attention"  # among a configuration's ``layer_types``


@dataclass(frozen=True)
class PrefillSpan:
    """Tokens ``first .. first+end-start-1`` of the row are tokens ``start .. end-1`` of the prompt
    in ``slot``. Tokens of one of ``blocks`` (first token, end) see all of it.
    """

    first: int
    slot: int
    start: int
    end: int
    blocks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class AttentionRule:
    """How a layer scores: the scale, its sliding window (0: none), its soft cap (0: none), its
    attention sinks (heads,), and the chunk of positions within which tokens see each other (0:
    none), which pages don't compute.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    chunk: int = 0

    @property
    def is_spelled_out(self) -> bool:
        """Whether it has what SDPA does not take."""
        return bool(self.softcap) or self.sinks is not None

    @property
    def reach(self) -> int:
        """Sequences of no more tokens are seen whole (0: all are)."""
        return self.window or self.chunk

    def oldest(self, positions: torch.Tensor) -> torch.Tensor:
        """The first position that tokens at ``positions`` see, where they don't see all."""
        return positions - (positions % self.chunk if self.chunk else self.window - 1)

    def scores(self, raw: torch.Tensor) -> torch.Tensor:
        """Gemma 2's soft cap, https://arxiv.org/abs/2408.00118, section 2."""
        return torch.tanh(raw / self.softcap) * self.softcap if self.softcap else raw


@dataclass
class PackedStep:
    """Where each token of the row belongs.

    ``slots`` and ``positions`` are (num_tokens,) int64 on the model's first device; the first
    ``num_decodes`` tokens are decodes of slots ``0 .. num_decodes-1`` and attend to at most
    ``max_len`` columns.
    """

    cache: KVCache
    slots: torch.Tensor
    positions: torch.Tensor
    num_decodes: int
    max_len: int
    prefills: list[PrefillSpan] = field(default_factory=list)
    _masks: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)
    _rows: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)
    _written: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Puts (1, kv_heads, num_tokens, dim) of both in a layer of the cache, and notes it."""
        rows = self.cache_rows(self.cache.keys[layer])
        write(self.cache.keys[layer], rows, key)
        write(self.cache.values[layer], rows, value)
        self._written[id(key)] = key, layer  # kept, so that no other tensor has its id

    def on(self, device: torch.device) -> PackedStep:
        """Itself, for layers on another device: what they need is moved when it is asked for."""
        return self

    @property
    def layers(self) -> set[int]:
        """Those that were written."""
        return {layer for _, layer in self._written.values()}

    def layer_of(self, key: torch.Tensor) -> int | None:
        """Where a key was written; None where it was not."""
        _, layer = self._written.get(id(key), (None, None))
        return layer

    def cache_rows(self, stored: torch.Tensor) -> torch.Tensor:
        """(num_tokens * kv_heads,) int64: where each token's heads lie in ``stored`` (slots,
        kv_heads, length, dim) seen as (slots * kv_heads * length, dim).
        """
        _, kv_heads, length, _ = stored.shape
        key = (kv_heads, length, stored.device)
        if key not in self._rows:
            first = self.slots * (kv_heads * length) + self.positions
            heads = torch.arange(kv_heads, device=first.device) * length
            self._rows[key] = (first.unsqueeze(1) + heads).flatten().to(stored.device)
        return self._rows[key]

    def decode_mask(
        self, rule: AttentionRule, like: torch.Tensor, repeats: int = 1
    ) -> torch.Tensor:
        """(num_decodes * repeats, 1, max_len) additive: 0 where a row's token may look, -inf
        elsewhere. Each row stands ``repeats`` times in a row.
        """
        key = (rule.window, rule.chunk, like.device, like.dtype, repeats)
        if key not in self._masks:
            positions = self.positions[: self.num_decodes].to(like.device).view(-1, 1, 1)
            columns = torch.arange(self.max_len, device=like.device)
            hidden = columns > positions
            if rule.reach:
                hidden = hidden | (columns < rule.oldest(positions))
            mask = additive_mask(hidden, like.dtype)
            self._masks[key] = mask.repeat_interleave(repeats, dim=0) if repeats > 1 else mask
        return self._masks[key]


def row_attention(
    step: Any,
    attend: Any,
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
    num_tokens, heads, dim). ``s_aux`` (heads,) are attention sinks. Keys and values are written
    where the ``step``, in slots or in pages, has room for them; ``attend`` is ``slot_attention``,
    or an Attend (forward/paged/attention.py).

    Keyword arguments that are not known here are ignored: what they would change shows in the
    engine's check at load.
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


def slot_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    step: PackedStep,
    rule: AttentionRule,
) -> torch.Tensor:
    """q (num_tokens, heads, key_dim), keys and values (slots, kv_heads, length, dim), the step's
    own written already -> (num_tokens, heads, value_dim).
    """
    if not step.prefills:
        return _decode(q, keys, values, step, rule)
    out = q.new_empty(q.shape[0], q.shape[1], values.shape[-1])
    if step.num_decodes:
        out[: step.num_decodes] = _decode(q[: step.num_decodes], keys, values, step, rule)
    for span in step.prefills:
        last = span.first + span.end - span.start
        chunk = q[span.first : last].transpose(0, 1).unsqueeze(0)
        out[span.first : last] = prefill_attention(chunk, keys, values, span, rule)
    return out


def _chunk(module: Any) -> int:
    """The chunk of a layer's attention (Llama 4), 0 without."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None) or {}
    is_chunked = kinds and kinds[module.layer_idx] == CHUNKED
    return int(config.attention_chunk_size) if config and is_chunked else 0


def write(stored: torch.Tensor, rows: torch.Tensor, states: torch.Tensor) -> None:
    """Puts states (1, kv_heads, num_tokens, dim) at their rows of ``stored``."""
    dim = stored.shape[-1]
    stored.view(-1, dim).index_copy_(0, rows, states[0].transpose(0, 1).reshape(-1, dim))


def _decode(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PackedStep, rule: AttentionRule
) -> torch.Tensor:
    """q (rows, heads, key_dim), one token of each of the first ``rows`` slots -> (rows, heads,
    value_dim).
    """
    if q.dtype == torch.float32 and q.device.type == "cpu" and not rule.is_spelled_out:
        return _decode_by_bmm(q, keys, values, step, rule)
    rows, heads, _ = q.shape
    kv_heads = keys.shape[1]
    k = keys[:rows, :, : step.max_len]  # (rows, kv_heads, max_len, key_dim), a view
    v = values[:rows, :, : step.max_len]
    folded = q.reshape(rows, kv_heads, heads // kv_heads, -1)
    mask = step.decode_mask(rule, q).unsqueeze(1)  # (rows, 1, 1, max_len)
    if rule.is_spelled_out:
        return _matmul_attention(folded, k, v, mask, rule).reshape(rows, heads, -1)
    mask = mask.expand(rows, 1, folded.shape[2], step.max_len)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=rule.scale)
    return out.reshape(rows, heads, -1)


def _decode_by_bmm(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PackedStep, rule: AttentionRule
) -> torch.Tensor:
    """As _decode, in fewer operators: in float32 on a CPU a tenth faster than SDPA."""
    rows, heads, dim = q.shape
    kv_heads = keys.shape[1]
    k = keys.flatten(0, 1)[: rows * kv_heads, : step.max_len]  # (rows * kv_heads, max_len, dim)
    v = values.flatten(0, 1)[: rows * kv_heads, : step.max_len]
    folded = q.reshape(rows * kv_heads, heads // kv_heads, dim)
    mask = step.decode_mask(rule, q, kv_heads)  # (rows * kv_heads, 1, max_len)
    scores = torch.baddbmm(mask, folded, k.transpose(1, 2), alpha=rule.scale)
    return torch.bmm(torch.softmax(scores, dim=-1), v).view(rows, heads, -1)


def prefill_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: PrefillSpan,
    rule: AttentionRule,
) -> torch.Tensor:
    """q (1, heads, chunk, key_dim) of one prompt -> (chunk, heads, value_dim)."""
    k = keys[span.slot : span.slot + 1, :, : span.end]
    v = values[span.slot : span.slot + 1, :, : span.end]
    if rule.is_spelled_out:
        out = _prefill_by_matmul(q, k, v, span, rule)
    elif span.start == 0 and not span.blocks and (not rule.reach or span.end <= rule.reach):
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=rule.scale, enable_gqa=True
        )
    elif q.device.type == "cuda":
        out = _prefill_folded(q, k, v, span, rule)
    else:
        visible = visible_columns(span, rule, q.device)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=rule.scale, enable_gqa=True
        )
    return out[0].transpose(0, 1)


def _prefill_folded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, span: PrefillSpan, rule: AttentionRule
) -> torch.Tensor:
    """As SDPA with ``enable_gqa``, which with a mask has no kernel on a GPU but the plain one: that
    repeats the keys and keeps all scores in float32.
    """
    _, heads, chunk, dim = q.shape
    group = heads // k.shape[1]
    visible = visible_columns(span, rule, q.device).repeat(group, 1)  # (group * chunk, end)
    folded = q.reshape(1, k.shape[1], group * chunk, dim)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=visible, scale=rule.scale)
    return out.reshape(1, heads, chunk, -1)


def _prefill_by_matmul(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, span: PrefillSpan, rule: AttentionRule
) -> torch.Tensor:
    _, heads, chunk, dim = q.shape
    kv_heads = k.shape[1]
    folded = q.reshape(1, kv_heads, heads // kv_heads * chunk, dim)
    mask = additive_mask(~visible_columns(span, rule, q.device), q.dtype)
    out = _matmul_attention(folded, k, v, mask.repeat(heads // kv_heads, 1), rule)
    return out.reshape(1, heads, chunk, -1)


def additive_mask(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """-inf where ``hidden``, else 0, of its shape."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, float("-inf"))


def visible_columns(span: PrefillSpan, rule: AttentionRule, device: torch.device) -> torch.Tensor:
    """(chunk, end) bool: the columns that each of the chunk's tokens may look at."""
    positions = torch.arange(span.start, span.end, device=device).unsqueeze(1)
    columns = torch.arange(span.end, device=device)
    visible = columns <= positions
    if rule.reach:
        visible = visible & (columns >= rule.oldest(positions))
    for first, end in span.blocks:
        visible[max(0, first - span.start) : max(0, end - span.start), first:end] = True
    return visible


def _matmul_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, rule: AttentionRule
) -> torch.Tensor:
    """Softmax(q k^T) v spelled out, for what SDPA does not take: soft caps, and sinks, which are
    one more score of each head that weighs no value (https://arxiv.org/abs/2508.10925, section
    2.2). q (rows, kv_heads, heads of one key head * tokens, dim).
    """
    scores = rule.scores(torch.matmul(q, k.transpose(-1, -2)).mul_(rule.scale)).add_(mask)
    if rule.sinks is not None:
        sinks = rule.sinks.to(scores.dtype).view(1, q.shape[1], -1, 1)
        sinks = sinks.repeat_interleave(q.shape[2] // sinks.shape[2], dim=2)
        scores = torch.cat([scores, sinks.expand(len(q), -1, -1, 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32)[..., : k.shape[2]]
    return torch.matmul(weights.to(q.dtype), v)
