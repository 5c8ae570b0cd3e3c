"""How each layer of a model attends: its scale and window, recorded by an attention function that
transformers calls.

Queries and keys are checked too. The short trial run of in_flight/runner_selection.py can't tell a
layer without rotary embedding from one with it where weights are small (SmolLM3 in bfloat16), nor
see a scaling that starts at far positions (Ministral 3).
"""

from __future__ import annotations

from typing import Any

import torch

from ..kv.kv_cache import context_length

# The rotary embeddings whose angles depend on the position alone, not on the batch's length.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_CHANGES = ("softcap", "s_aux")  # arguments that change attention in a way ours does not compute
_RECORDING = "hf_triton_recording"
_TOKENS = 4
_TOLERANCE = 0.03  # of the largest number; rotating in bfloat16 rounds to less than 0.01


class UnsupportedDecoderError(Exception):
    """The fused runner does not support this decoder; the text says why."""


def angles(
    rotary: Any, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions (n,) -> cosines and sines, (n, rotary dim) each, in the model's dtype."""
    kind = getattr(rotary, "rope_type", None)
    if kind not in _ROPE_TYPES:
        raise UnsupportedDecoderError(f"its rotary embedding is of the type {kind}")
    like = torch.zeros(1, dtype=dtype, device=positions.device)
    cos, sin = rotary(like, position_ids=positions.unsqueeze(0))
    if cos.dtype != dtype or sin.dtype != dtype:
        raise UnsupportedDecoderError(f"its rotary embedding is in {cos.dtype}")
    return cos[0].contiguous(), sin[0].contiguous()


def attention_rules(model: Any, rotary: Any, max_model_len: int) -> dict[Any, tuple[float, int]]:
    """Attention module -> its scale and window.

    Raises:
        UnsupportedDecoderError: a layer does more to its queries and keys than rotate them, tried
            at the model's furthest position.
    """
    from transformers import AttentionInterface

    furthest = (context_length(model.config.get_text_config()) or max_model_len) - 1
    ends = torch.tensor([0, furthest], device=model.device)
    cos, sin = angles(rotary, ends, model.dtype)
    rules: dict[Any, tuple[float, int]] = {}

    def record(
        module: Any, query: torch.Tensor, key: torch.Tensor, *_: Any, **given: Any
    ) -> tuple[torch.Tensor, None]:
        rules[module] = (given["scaling"], given.get("sliding_window") or 0)
        if changes := [name for name in _CHANGES if given.get(name) is not None]:
            raise UnsupportedDecoderError(f"its attention is given {', '.join(changes)}")
        for states in (query, key):
            _check_rotated(states, cos, sin)
        return torch.zeros_like(query).transpose(1, 2), None

    AttentionInterface.register(_RECORDING, record)
    before = model.config._attn_implementation  # noqa: SLF001
    model.set_attn_implementation(_RECORDING)
    try:
        # What attention gives is nothing, so that both rows stay alike through all layers.
        input_ids = torch.arange(_TOKENS, device=model.device).repeat(2, 1)
        positions = ends.unsqueeze(1).expand(2, _TOKENS)
        model(input_ids=input_ids, position_ids=positions, use_cache=False)
    finally:
        model.set_attn_implementation(before)
    return rules


def _check_rotated(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """states (2, heads, tokens, dim), cos and sin (2, rotary dim): the same vectors, at position 0
    and at another one.
    """
    start, far = states.float()
    size = cos.shape[1]
    scale = cos[0].float()  # YaRN's, at every position
    turned, rest = start[..., :size] / scale, start[..., size:]
    halves = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], dim=-1)
    expected = torch.cat([turned * cos[1].float() + halves * sin[1].float(), rest], dim=-1)
    if (far - expected).abs().max() > _TOLERANCE * expected.abs().max():
        raise UnsupportedDecoderError("its queries or keys are not only rotated")
