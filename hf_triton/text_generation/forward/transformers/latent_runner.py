"""Runs models of latent attention (DeepSeek V2, https://arxiv.org/abs/2405.04434, section 2.1)
packed: slots keep the latents, which a layer's ``kv_b_proj`` makes keys and values of.

Few tokens attend to the latents themselves, with what makes keys and values moved to the query and
the output; a prompt's chunk has all keys and values made, as transformers does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hf_triton.text_generation.memory.kv_cache import KVCache

from .packed_attention import (
    AttentionRule,
    PackedStep,
    PrefillSpan,
    additive_mask,
    current_step,
    packed_attention,
    prefill_attention,
    visible_columns,
)
from .packed_runner import PackedRunner

_ATTENTION_NAME = "hf_triton_latent"
_EXPANDS = "expand_kv"  # a layer's method from latents to keys and values
_LATENTS = "hf_triton_latents"
# A chunk of more tokens reads its prompt's keys and values more often than it takes to make them.
_FEW_TOKENS = 64


def keeps_latents(model: Any) -> bool:
    """Whether layers of the model make their keys and values of latents."""
    return any(hasattr(module, _EXPANDS) for module in model.modules())


class LatentRunner(PackedRunner):
    """Sets attention over latents, where layers keep those."""

    attention = _ATTENTION_NAME

    def __init__(
        self, model: Any, cache: KVCache, device: torch.device, *, attends: bool = True
    ) -> None:
        from transformers import AttentionInterface

        self._layers = [module for module in model.modules() if hasattr(module, _EXPANDS)]
        AttentionInterface.register(_ATTENTION_NAME, latent_attention)
        for module in self._layers:
            setattr(module, _LATENTS, Latents(module))
        super().__init__(model, cache, device, attends=attends)

    def run(
        self, input_ids: torch.Tensor, packed: PackedStep, rows: torch.Tensor | list[int]
    ) -> torch.Tensor:
        with _kept(self._layers):
            return super().run(input_ids, packed, rows)


class Latents:
    """A layer's way from queries to latents and back: (heads, dim, rank) each."""

    @torch.inference_mode()
    def __init__(self, module: Any) -> None:
        rank, key_dim, value_dim = (
            int(getattr(module, name))
            for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        )
        like = next(module.parameters())
        each = torch.eye(rank, dtype=like.dtype, device=like.device)
        weight = module.kv_b_proj(each).T.unflatten(0, (-1, key_dim + value_dim))
        self.to_latent = weight[:, :key_dim].contiguous()
        self.to_value = weight[:, key_dim:].contiguous()
        self.module, self.key_dim = module, key_dim

    def attend(
        self,
        q: torch.Tensor,
        latents: torch.Tensor,
        rotated: torch.Tensor,
        mask: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """q (rows, tokens, heads, dim), latents (rows, columns, rank), rotated (rows, columns,
        rotary dim), mask (rows, tokens, columns) additive -> (rows, tokens, heads, value_dim).
        """
        heads = q.shape[2]
        still, turned = q[..., : self.key_dim], q[..., self.key_dim :].flatten(1, 2)
        moved = torch.einsum("bthd,hdr->bthr", still, self.to_latent).flatten(1, 2)
        scores = torch.matmul(moved, latents.transpose(1, 2))
        scores = torch.baddbmm(scores, turned, rotated.transpose(1, 2)).mul_(scale)
        scores = scores.unflatten(1, (-1, heads)) + mask.unsqueeze(2)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(weights.flatten(1, 2), latents).unflatten(1, (-1, heads))
        return torch.einsum("bthr,hvr->bthv", out, self.to_value)


def latent_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """As packed_attention; of a layer that keeps latents, ``key`` are those, (1, 1, num_tokens,
    rank), and ``value`` the rotated part of keys.
    """
    own: Latents | None = getattr(module, _LATENTS, None)
    if own is None:
        others |= {"scaling": scaling, "sliding_window": sliding_window}
        return packed_attention(module, query, key, value, attention_mask, **others)
    if others.get("softcap") or others.get("s_aux") is not None:
        raise NotImplementedError("latents with soft caps or sinks")
    step = current_step()
    step.write(module.layer_idx, key, value)
    stored = step.cache.keys[module.layer_idx], step.cache.values[module.layer_idx]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = AttentionRule(scale, sliding_window or 0)
    out = query.new_empty(query.shape[2], query.shape[1], own.to_value.shape[1])
    count = step.num_decodes
    if count:
        q = query[0, :, :count].transpose(0, 1).unsqueeze(1)
        latents, rotated = (one[:count, 0, : step.max_len] for one in stored)
        mask = step.decode_mask(rule, q)
        out[:count] = own.attend(q, latents, rotated, mask, scale)[:, 0]
    for span in step.prefills:
        last = span.first + span.end - span.start
        out[span.first : last] = _chunk(own, query[:, :, span.first : last], *stored, span, rule)
    return out.unsqueeze(0), None


def _chunk(
    own: Latents,
    q: torch.Tensor,
    latents: torch.Tensor,
    rotated: torch.Tensor,
    span: PrefillSpan,
    rule: AttentionRule,
) -> torch.Tensor:
    """q (1, heads, chunk, dim) of one prompt -> (chunk, heads, value_dim)."""
    at = slice(span.slot, span.slot + 1)
    latents, rotated = latents[at, :, : span.end], rotated[at, :, : span.end]
    if q.shape[2] <= _FEW_TOKENS:
        mask = additive_mask(~visible_columns(span, rule, q.device), q.dtype)[None]
        return own.attend(q.transpose(1, 2), latents[:, 0], rotated[:, 0], mask, rule.scale)[0]
    expand = getattr(type(own.module), _EXPANDS)
    keys, values = expand(own.module, latents, rotated)
    first = PrefillSpan(span.first, 0, span.start, span.end, span.blocks)
    return prefill_attention(q, keys, values, first, rule)


@contextmanager
def _kept(layers: list[Any]) -> Iterator[None]:
    """Has the layers hand latents to their attention instead of keys and values."""
    for module in layers:
        setattr(module, _EXPANDS, lambda latents, rotated: (latents, rotated))
    try:
        yield
    finally:
        for module in layers:
            delattr(module, _EXPANDS)
