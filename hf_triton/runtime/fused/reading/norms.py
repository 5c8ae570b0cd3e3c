"""Reads a norm off a recorded call: the form whose numbers agree with it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch

from ..parts import Norm, UnsupportedLayersError
from .recording import Call

_EPS = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_DEFAULT_EPS = 1e-5  # OLMo's has no attribute
_TIMES_EPS = 8  # of the dtype's last bit, which a norm may differ by
_SAME = 8 * torch.finfo(torch.float32).eps  # a sum in another order


def read_norm(call: Call) -> Norm | None:
    """The norm of the last dimension that the call computed, None where it computed anything else.
    Among forms that agree, Llama's.

    Raises:
        UnsupportedLayersError: its weight is not as large as what it norms.
    """
    x, y = call.input, call.output
    if x.shape != y.shape or not x.numel():
        return None
    forms = _forms(call.module, x)
    errors = [max(_error(norm, x, y), _SAME) for norm in forms]
    if not forms or min(errors) > _TIMES_EPS * torch.finfo(y.dtype).eps:
        return None
    return forms[errors.index(min(errors))]


def _forms(module: Any, x: torch.Tensor) -> list[Norm]:
    parameters = dict(module.named_parameters(recurse=False))
    weight, bias = parameters.pop("weight", None), parameters.pop("bias", None)
    if parameters or any(True for _ in module.children()):
        return []
    eps = next((e for name in _EPS if isinstance(e := getattr(module, name, None), float)), None)
    if eps is None and weight is not None:
        return []
    weight = x.new_ones(x.shape[-1]) if weight is None else weight.detach()
    if x.shape[-weight.dim() :] != weight.shape:
        if weight.dim() > 1:
            return []
        raise UnsupportedLayersError(f"a norm of {tuple(weight.shape)} for {x.shape[-1]} numbers")
    eps = _DEFAULT_EPS if eps is None else eps
    forms = []
    if bias is None and weight.dtype == x.dtype:
        forms.append(Norm(weight.contiguous(), eps))
    wide_bias = None if bias is None else bias.detach().float().contiguous()
    for offset, has_mean in itertools.product((0, 1), (False, True)):
        wide = (weight.float() + offset).contiguous()
        forms.append(Norm(wide, eps, wide_bias, has_mean, is_wide=True))
    return forms


def widened(norm: Norm) -> Norm:
    """The norm with its weight in float32."""
    return replace(norm, weight=norm.weight.float(), is_wide=True)


def normed(norm: Norm, x: torch.Tensor) -> torch.Tensor:
    """What the kernels compute, in torch's operators; x (..., size)."""
    wide = x.float()
    if norm.has_mean:
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    if not norm.is_wide:
        return norm.weight * wide.to(x.dtype)
    y = wide * norm.weight
    return (y if norm.bias is None else y + norm.bias).to(x.dtype)


def _error(norm: Norm, x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    error = (normed(norm, x).float() - y.float()).abs().max()
    return float(error / y.float().abs().max().clamp(min=1e-30))
