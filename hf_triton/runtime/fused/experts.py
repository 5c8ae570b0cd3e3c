"""A mixture's experts on a CPU: one loop over all of them, instead of two products for each. Where
an expert has many tokens, torch's products over its tokens are faster.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

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
    experts = top_k_index.flatten().to(torch.int64)
    ordered, order = experts.sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(module.num_experts + 1))
    pairs = _Pairs(experts, order, starts)
    x = _product(module, "gate_up_proj" if module.has_gate else "up_proj", hidden_states, pairs)
    x = module._apply_gate(x) if module.has_gate else module.act_fn(x)  # noqa: SLF001
    x = _product(module, "down_proj", x, pairs)
    x = x.view(*top_k_index.shape, -1) * top_k_weights.unsqueeze(-1)
    return x.sum(dim=1).to(hidden_states.dtype)


def takes(module: Any) -> bool:
    """True if the loop can read the experts' weights; transposed ones are laid out anew."""
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


class _Pairs(NamedTuple):
    """The expert of each pair of a token and one of its experts, (tokens * k), and the pairs in the
    experts' order: those of expert ``e`` are ``order[starts[e] : starts[e + 1]]``. The expert after
    the last is none.
    """

    experts: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor


def _product(module: Any, name: str, x: torch.Tensor, pairs: _Pairs) -> torch.Tensor:
    """x (tokens or pairs, inputs) -> (pairs, outputs)."""
    weight = getattr(module, name).detach()
    if module.is_transposed:
        weight = weight.transpose(1, 2)  # (experts, outputs, inputs)
    count = len(pairs.order)
    per_row, num_experts = count // len(x), module.num_experts
    out = x.new_zeros(count, weight.shape[1])
    if count >= MANY[x.dtype] * num_experts:
        starts = pairs.starts.tolist()
        for expert, (first, last) in enumerate(itertools.pairwise(starts)):
            own = pairs.order[first:last]
            if len(own):
                out[own] = F.linear(x[own // per_row], weight[expert])
    else:
        x = x.contiguous()
        team_of(torch.get_num_threads()).run(
            load_kernel("experts", x.dtype),
            *(num_experts, weight.shape[2], weight.shape[1], x.data_ptr(), weight.data_ptr()),
            *(pairs.starts.data_ptr(), pairs.order.data_ptr(), per_row, out.data_ptr()),
        )
    if module.has_bias:
        known = pairs.experts.clamp(max=num_experts - 1)
        out += getattr(module, f"{name}_bias").detach().index_select(0, known)
    return out
