"""How a mixture's experts are computed on a CPU: in one loop, where transformers' own grouped
products take one call for each expert.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import reason

CPU_EXPERTS_NAME = "hf_triton_experts_cpu"
_TRIED = 9  # tokens: several of an expert
_TIMES_EPS = 32  # of the last bit of what a loop may differ by


def choose_experts(model: Any) -> None:
    """Has a model on a CPU compute its experts in one loop, if that agrees with transformers' own
    grouped products for each kind of experts.
    """
    if getattr(model.config, "_experts_implementation", "") != "grouped_mm":
        return
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
