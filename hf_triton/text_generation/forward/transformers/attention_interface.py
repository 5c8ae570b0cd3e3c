"""Attention of Falcon, GPT-J, CodeGen and GPT-Neo through transformers' attention interface, which
their own does not use, so that they run packed.

Falcon's own picks keys by lists of indices, which the host copies to a GPU, and repeats them for
every query head. GPT-J's computes scores operator by operator; GPT-Neo's counts windows from the
longest row of a batch.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

_GPTJ = ("GPTJAttention", "CodeGenAttention")


def use_attention_interface(model: Any) -> None:
    """Changes a GPT-J, CodeGen, GPT-Neo, or Falcon with rotary embeddings; no other model."""
    is_falcon = model.config.model_type == "falcon" and not model.config.alibi
    for module in model.modules():
        kind = type(module).__name__
        if kind == "FalconAttention" and is_falcon:
            module.num_key_value_groups = module.num_heads // module.num_kv_heads
            module.forward = MethodType(_forward, module)
        elif kind in _GPTJ:
            module.config = model.config  # CodeGen's layers lack it
            module._attn = MethodType(_attend, module)  # noqa: SLF001
        elif kind == "GPTNeoSelfAttention":
            module.layer_idx, module.scale_attn = module.layer_id, 1.0
            is_local = module.attention_type == "local"
            module.own_window = model.config.window_size if is_local else None
            module._attn = MethodType(_attend, module)  # noqa: SLF001
        else:
            continue
        # transformers answers this by the source of a model's attention.
        model._can_set_attn_implementation = lambda: True  # noqa: SLF001


def _forward(
    module: Any,
    hidden_states: torch.Tensor,
    alibi: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    layer_past: Any = None,
    position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """hidden_states (batch, tokens, size) -> the same shape; FalconAttention's arguments."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.falcon import modeling_falcon as falcon
    from transformers.models.llama.modeling_llama import eager_attention_forward

    fused = module.query_key_value(hidden_states)  # (batch, tokens, all heads * dim)
    groups = fused.unflatten(-1, (module.num_kv_heads, -1, module.head_dim))
    query = groups[..., :-2, :].flatten(2, 3).transpose(1, 2)
    key, value = (groups[..., at, :].transpose(1, 2) for at in (-2, -1))  # views
    assert position_embeddings is not None
    query, key = falcon.apply_rotary_pos_emb(query, key, *position_embeddings)
    if layer_past is not None:
        key, value = layer_past.update(key, value, module.layer_idx)
    name = module.config._attn_implementation  # noqa: SLF001
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)
    out, weights = attend(
        module, query, key, value, attention_mask, scaling=module.inv_norm_factor, dropout=0.0
    )
    return module.dense(out.flatten(2)), weights


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """query, key and value (batch, heads, tokens, dim) -> the same shape."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = module.config._attn_implementation  # noqa: SLF001
    rule: dict[str, Any] = {"scaling": 1 / float(module.scale_attn), "dropout": 0.0}
    rule["sliding_window"] = getattr(module, "own_window", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(name, _own)
    out, weights = attend(module, query, key, value, attention_mask, **rule)
    return out.transpose(1, 2), weights


def _own(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The implementation ``eager``: the model's own."""
    out, weights = type(module)._attn(module, query, key, value, attention_mask)  # noqa: SLF001
    return out.transpose(1, 2), weights
