"""How a mixture's experts are computed: on a CPU in one loop, and on GPUs whose grouped product
needs the host.

torch's ``grouped_mm`` is one kernel in bfloat16 on Hopper and data-centre Blackwell. Elsewhere the
host reads how many tokens each expert has, which waits for the device twice a layer and can't be
captured: aten/src/ATen/native/cuda/GroupedBlas.cpp. Steps of few tokens, which are those that wait
for launches and not for arithmetic, are computed here by shapes that the host knows.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import reason

EXPERTS_NAME, CPU_EXPERTS_NAME = "hf_triton_experts", "hf_triton_experts_cpu"
# Up to here a layer takes as long as reading its weights does, even where every expert computes
# every token.
MOST_TOKENS = 64
# Weights of chosen experts are read, written and read again.
_GATHER_COST = 3
_TRIED = 9  # tokens, on a CPU: several of an expert
_TIMES_EPS = 32  # of the last bit of what a loop may differ by


def choose_experts(model: Any, device: torch.device) -> None:
    """Has the model compute its experts, where it has any, in one loop on a CPU, and without the
    host on a GPU where ``grouped_mm`` would ask it.
    """
    if getattr(model.config, "_experts_implementation", "") != "grouped_mm":
        return
    if device.type == "cpu":
        _choose_on_cpu(model)
    if device.type != "cuda":
        return
    if model.dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in (9, 10):
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, experts_forward)
    model.set_experts_implementation(EXPERTS_NAME)


def _choose_on_cpu(model: Any) -> None:
    """Takes the loop where it computes what each kind of experts does now."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    experts = [module for module in model.modules() if hasattr(module, "has_post_expert_norm")]
    try:
        from hf_triton.runtime.fused.experts import grouped_experts, takes

        kinds = {type(module): module for module in experts}.values()
        fits = all(map(takes, experts)) and all(_agrees(each, grouped_experts) for each in kinds)
    except Exception as error:
        # Whatever fails here, transformers' own way serves.
        log.info(f"no loop over experts: {type(error).__name__}: {reason(error, 120)}")
        return
    if experts and fits:
        ALL_EXPERTS_FUNCTIONS.register(CPU_EXPERTS_NAME, grouped_experts)
        model.set_experts_implementation(CPU_EXPERTS_NAME)


@torch.inference_mode()
def _agrees(module: Any, forward: Any) -> bool:
    weight = module.down_proj
    size = weight.shape[2] if module.is_transposed else weight.shape[1]
    chosen = torch.arange(2 * _TRIED).view(_TRIED, 2) % module.num_experts
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_TRIED, size, generator=generator).to(weight.dtype)
    weights = torch.rand(_TRIED, 2, generator=generator).to(weight.dtype)
    expected, got = module(x, chosen, weights).float(), forward(module, x, chosen, weights).float()
    tolerance = _TIMES_EPS * torch.finfo(weight.dtype).eps
    return bool((got - expected).abs().max() <= tolerance * expected.abs().max())


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
    if len(hidden_states) > MOST_TOKENS:
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
    """Every expert computes every token, which takes what those that it chose have computed: what
    overflows in others would be NaN times a weight of 0.
    """
    states = hidden_states.expand(
        module.num_experts, *hidden_states.shape
    )  # (experts, tokens, size)
    states = _product(module, "gate_up_proj" if module.has_gate else "up_proj", states)
    states = module._apply_gate(states) if module.has_gate else module.act_fn(states)  # noqa: SLF001
    states = _product(module, "down_proj", states)
    if module.has_post_expert_norm:
        states = module.post_expert_norm(states)
    tokens = torch.arange(len(hidden_states), device=states.device).unsqueeze(1)
    chosen = states[top_k_index, tokens]  # (tokens, k, size)
    return (chosen * top_k_weights.unsqueeze(-1)).sum(dim=1).to(hidden_states.dtype)


def _product(module: Any, name: str, states: torch.Tensor) -> torch.Tensor:
    """(experts, tokens, in) -> (experts, tokens, out)."""
    weight = getattr(module, name)
    out = torch.bmm(states, weight if module.is_transposed else weight.transpose(1, 2))
    return out + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else out
