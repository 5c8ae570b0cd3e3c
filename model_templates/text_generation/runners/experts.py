"""How a mixture's experts are computed on GPUs whose grouped product needs the host.

torch's ``grouped_mm`` is one kernel in bfloat16 on Hopper and data-centre Blackwell. Elsewhere the
host reads how many tokens each expert has, which waits for the device twice a layer and can't be
captured: aten/src/ATen/native/cuda/GroupedBlas.cpp. Steps of few tokens, which are those that wait
for launches and not for arithmetic, are computed here by shapes that the host knows.
"""

from __future__ import annotations

from typing import Any

import torch

EXPERTS_NAME = "hf_triton_experts"
# Up to here a layer takes as long as reading its weights does, even where every expert computes
# every token.
_MOST_TOKENS = 64
# Weights of chosen experts are read, written and read again.
_GATHER_COST = 3


def choose_experts(model: Any, device: torch.device) -> None:
    """Has the model compute its experts without the host, where it has any and ``grouped_mm`` would
    ask it.
    """
    if (
        device.type != "cuda"
        or getattr(model.config, "_experts_implementation", "") != "grouped_mm"
    ):
        return
    if model.dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10):
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, experts_forward)
    model.set_experts_implementation(EXPERTS_NAME)


def experts_forward(
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """hidden_states (num_tokens, size), each token's experts and their weights (num_tokens, k) ->
    (num_tokens, size); ``module`` holds the experts' weights as transformers' MoE interface says.
    """
    from transformers.integrations import moe

    forward: Any = _every_expert
    if len(hidden_states) > _MOST_TOKENS:
        forward = moe.grouped_mm_experts_forward
    elif top_k_index.numel() * _GATHER_COST <= module.num_experts:
        forward = moe.batched_mm_experts_forward
    out: torch.Tensor = forward(module, hidden_states, top_k_index, top_k_weights)
    return out


def _every_expert(
    module: Any,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """Every expert computes every token; those that a token did not choose weigh nothing."""
    states = hidden_states.expand(
        module.num_experts, *hidden_states.shape
    )  # (experts, tokens, size)
    states = _product(module, "gate_up_proj" if module.has_gate else "up_proj", states)
    states = module._apply_gate(states) if module.has_gate else module.act_fn(states)  # noqa: SLF001
    states = _product(module, "down_proj", states)
    if module.has_post_expert_norm:
        states = module.post_expert_norm(states)
    weights = top_k_weights.new_zeros(len(hidden_states), module.num_experts)
    weights = weights.scatter(1, top_k_index, top_k_weights).t().unsqueeze(-1)
    return (states * weights).sum(dim=0).to(hidden_states.dtype)


def _product(module: Any, name: str, states: torch.Tensor) -> torch.Tensor:
    """(experts, tokens, in) -> (experts, tokens, out)."""
    weight = getattr(module, name)
    out = torch.bmm(states, weight if module.is_transposed else weight.transpose(1, 2))
    return out + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else out
