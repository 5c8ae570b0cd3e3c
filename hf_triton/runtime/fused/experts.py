"""A mixture's experts on a CPU: one loop over all of them, instead of two products for each. Where
an expert has many tokens, torch's products over its tokens are faster.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from hf_triton.runtime.kernels.compiled_loops import load_kernel, team_of

_DTYPES = (torch.float32, torch.bfloat16)
# Tokens of an expert from which torch's products are faster; in bfloat16 they use the processor's
# products of matrices.
MANY = {torch.float32: 24, torch.bfloat16: 6}


def grouped_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """hidden_states (tokens, size), each token's experts and their weights (tokens, k) -> (tokens,
    size); ``module`` holds the experts' weights as transformers' MoE interface says.
    """
    if not len(hidden_states):
        return hidden_states
    pairs = _Pairs(top_k_index, module.num_experts)
    x = _product(module, "gate_up_proj" if module.has_gate else "up_proj", hidden_states, pairs)
    x = module._apply_gate(x) if module.has_gate else module.act_fn(x)  # noqa: SLF001
    x = _product(module, "down_proj", x, pairs)
    x = x.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
    return x.sum(dim=1).to(hidden_states.dtype)


def takes(module: Any) -> bool:
    """Whether the loop can read the experts' weights; transposed ones are laid out anew."""
    names = ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")
    for weight in (getattr(module, name, None) for name in names):
        if type(weight) is not torch.nn.Parameter or weight.dtype not in _DTYPES:
            return False
        if module.is_transposed and weight.is_contiguous():
            weight.data = weight.data.transpose(1, 2).contiguous().transpose(1, 2)
        laid_out = weight.transpose(1, 2) if module.is_transposed else weight
        if not laid_out.is_contiguous() or laid_out.shape[1] % 4:
            return False
    return not module.has_post_expert_norm


class _Pairs:
    """All pairs of a token and one of its experts, (tokens * k), in the experts' order: those of
    expert ``e`` are ``order[starts[e] : starts[e + 1]]``.
    """

    def __init__(self, top_k_index: torch.Tensor, num_experts: int) -> None:
        chosen = top_k_index.to(torch.int64).contiguous()
        self.num_experts, self.count, self.per_token = num_experts, chosen.numel(), chosen.shape[1]
        self.starts = torch.empty(num_experts + 3, dtype=torch.int64)
        self.order = torch.empty(self.count, dtype=torch.int64)
        team_of(torch.get_num_threads()).run(
            load_kernel("group", torch.float32),
            *(self.count, num_experts, chosen.data_ptr()),
            *(self.starts.data_ptr(), self.order.data_ptr()),
            numbers=0,
        )


def _product(module: Any, name: str, x: torch.Tensor, pairs: _Pairs) -> torch.Tensor:
    """x (tokens or pairs, inputs) -> (pairs, outputs)."""
    weight = getattr(module, name).detach()
    if module.is_transposed:
        weight = weight.transpose(1, 2)  # (experts, outputs, inputs)
    bias = getattr(module, f"{name}_bias").detach() if module.has_bias else None
    per_row = pairs.count // len(x) if len(x) else 1
    out = x.new_zeros(pairs.count, weight.shape[1])
    if pairs.count >= MANY[x.dtype] * pairs.num_experts:
        starts = pairs.starts.tolist()
        for expert in range(pairs.num_experts):
            own = pairs.order[starts[expert] : starts[expert + 1]]
            if len(own):
                own_bias = None if bias is None else bias[expert]
                out[own] = F.linear(x[own // per_row], weight[expert], own_bias)
        return out
    x, wide = x.contiguous(), None if bias is None else bias.float()
    team_of(torch.get_num_threads()).run(
        load_kernel("experts", x.dtype),
        *(pairs.num_experts, weight.shape[2], weight.shape[1], x.data_ptr(), weight.data_ptr()),
        *(pairs.starts.data_ptr(), pairs.order.data_ptr()),
        *(0 if wide is None else wide.data_ptr(), per_row, out.data_ptr()),
    )
    return out
