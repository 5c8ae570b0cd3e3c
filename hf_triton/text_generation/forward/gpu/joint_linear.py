"""Linear layers of one input as one product: fewer kernels, each large enough to fill the device.

The joint weight is the only one: the layers' own become views of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hf_triton.runtime.fused.parts import Linear
from hf_triton.runtime.fused.reading.attention import joined_by_prepacking


class JointLinear:
    """(tokens, in_features) -> the outputs of all, one after the other, (tokens, sum of
    out_features).
    """

    @torch.inference_mode(mode=False)
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = _joined([layer.weight for layer in layers])
        has_bias = layers[0].bias is not None
        self.bias = _joined([layer.bias for layer in layers]) if has_bias else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


_MADE: WeakKeyDictionary[nn.Module, JointLinear] = WeakKeyDictionary()  # by their first layer


def join(*layers: Any) -> Linear:
    """The joint product of plain linear layers; of others (quantized, or with hooks) their own."""
    if not _are_alike(layers):
        return joined_by_prepacking(*layers)
    if layers[0] not in _MADE:
        _MADE[layers[0]] = JointLinear(layers)
    return _MADE[layers[0]]


def _are_alike(layers: Sequence[Any]) -> bool:
    """Whether all are nothing but a product with a weight, alike in dtype, device and bias."""
    # accelerate's hooks replace what a layer computes
    if any(type(layer) is not nn.Linear or hasattr(layer, "_hf_hook") for layer in layers):
        return False
    if any(is_traceable_wrapper_subclass(layer.weight) for layer in layers):  # torchao's
        return False
    kinds = {(layer.weight.dtype, layer.weight.device, layer.bias is None) for layer in layers}
    return len(kinds) == 1


@torch.no_grad()
def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts one after the other; they become views of that."""
    whole = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = view
    return whole
