"""A mixture's experts on a CPU: a prepacked layer for each, over the tokens that chose it."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from hf_triton.runtime.devices.prepacked_linear import PrepackedLinear, packed

_DTYPES = (torch.float32, torch.bfloat16)
_PACKED = "packed_experts"  # of a module: its layers before and after the activation


def grouped_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """hidden_states (tokens, size), each token's experts and their weights (tokens, k) -> (tokens,
    size); ``module`` is packed. The expert after the last is none.
    """
    if not len(hidden_states):
        return hidden_states
    experts, order = top_k_index.flatten().to(torch.int64).sort(stable=True)
    starts = torch.searchsorted(experts, torch.arange(module.num_experts + 1)).tolist()
    runs = [(*run, number) for number, run in enumerate(itertools.pairwise(starts))]
    first, second = getattr(module, _PACKED)
    x = _products(first, hidden_states[order // top_k_index.shape[1]], runs)
    x = module._apply_gate(x) if module.has_gate else module.act_fn(x)  # noqa: SLF001
    x = _products(second, x, runs)
    out = x.new_zeros(len(order), x.shape[1])
    out[order[: len(x)]] = x
    out = out.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
    return out.sum(dim=1).to(hidden_states.dtype)


def _products(
    layers: list[PrepackedLinear], x: torch.Tensor, runs: list[tuple[int, int, int]]
) -> torch.Tensor:
    """x (pairs, inputs), those of an expert one after the other -> (pairs, outputs)."""
    return torch.cat([layers[number](x[begin:end]) for begin, end, number in runs if begin < end])


def pack(module: Any) -> bool:
    """Lays out the weights, which transformers' MoE interface describes, beside the module's own;
    returns False where it can't.
    """
    if not hasattr(module, _PACKED):
        names = _names(module)
        weights = [getattr(module, name, None) for name in names]
        are_plain = all(type(one) is nn.Parameter and one.dtype in _DTYPES for one in weights)
        if module.has_post_expert_norm or not are_plain:
            return False
        both = [_layers(module, name) for name in names]
        if not all(itertools.chain(*both)):
            return False
        setattr(module, _PACKED, both)
    return True


def drop_weights(module: Any) -> None:
    """Frees the module's own weights."""
    for name in _names(module):
        parameter = getattr(module, name)
        parameter.data = parameter.new_empty(0)


def _names(module: Any) -> tuple[str, str]:
    return ("gate_up_proj" if module.has_gate else "up_proj"), "down_proj"


def _layers(module: Any, name: str) -> list[PrepackedLinear | None]:
    weights = getattr(module, name).detach()
    if module.is_transposed:
        weights = weights.transpose(1, 2)  # (experts, outputs, inputs)
    biases = getattr(module, f"{name}_bias").detach() if module.has_bias else [None] * len(weights)
    return [packed([layer], in_half=True) for layer in zip(weights, biases, strict=True)]
