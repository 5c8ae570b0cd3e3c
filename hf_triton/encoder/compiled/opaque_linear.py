"""Prepacked linear layers that torch.compile takes as they are: one operator, not looked into."""

from __future__ import annotations

import contextlib
import itertools
from weakref import WeakValueDictionary

import torch
from torch import nn

from hf_triton.runtime.devices.linear_layouts import PrepackedLinear

# The operator is given a number: its arguments can't be modules.
_LAYERS: WeakValueDictionary[int, PrepackedLinear] = WeakValueDictionary()
_NUMBERS = itertools.count()


@torch.library.custom_op("hf_triton::prepacked_linear", mutates_args=())
def _linear(x: torch.Tensor, number: int, out_features: int) -> torch.Tensor:
    """(..., in_features) -> (..., out_features)."""
    y: torch.Tensor = _LAYERS[number](x)
    return y


@_linear.register_fake
def _shape(x: torch.Tensor, number: int, out_features: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


class OpaqueLinear(nn.Module):
    """A PrepackedLinear behind that operator."""

    def __init__(self, layer: PrepackedLinear) -> None:
        super().__init__()
        self.layer = layer
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._number = next(_NUMBERS)
        _LAYERS[self._number] = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _linear(x, self._number, self.out_features)
        return y

    @property
    def weight(self) -> torch.Tensor:
        """As PrepackedLinear's."""
        return self.layer.weight


def make_opaque(model: nn.Module) -> None:
    """Replaces the linear layers of a CPU model where torch can lay their weights out."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype in (torch.float32, torch.bfloat16):
                with contextlib.suppress(AttributeError, RuntimeError):
                    setattr(parent, name, OpaqueLinear(PrepackedLinear(child.weight, child.bias)))
