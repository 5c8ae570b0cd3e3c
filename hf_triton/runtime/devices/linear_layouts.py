"""Linear layers with prepacked weights for the CPU: one class for each layout.

prepacked_linear.py chooses among them. The operators are private to torch, which has
no public way to prepack a weight (``mkldnn``: what inductor emits; ``quantized``: what dynamic
quantization calls). Where one is missing or fails, its layout is not used. A test holds all layouts
to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_FLOAT16_EXPONENT = 16  # its numbers are less than 2 to it
_LARGEST_POWER = 2.0**64  # a product of one that is larger could be too large for float32
# What oneDNN computes of a product's results before it writes them: its names for it.
_ACTIVATIONS: dict[str, tuple[str, list[Any], str]] = {
    "gelu": ("gelu", [], "none"),
    "gelu_tanh": ("gelu", [], "tanh"),
}


class PrepackedLinear(nn.Module):
    """``y = x @ weight.T + bias``, ``weight`` (out_features, in_features) laid out by oneDNN."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._pack(weight.detach().contiguous(), None if bias is None else bias.detach())

    @staticmethod
    def joined(weights: list[torch.Tensor]) -> torch.Tensor:
        """Concatenates weights by their outputs, in order."""
        return torch.cat(weights)

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Raises AttributeError or RuntimeError where torch can't lay the weight out so."""
        ops = torch.ops.mkldnn
        self._linear = ops._linear_pointwise  # noqa: SLF001
        self.packed, self.bias = ops._reorder_linear_weight(weight, None), bias  # noqa: SLF001

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), in the weight's dtype."""
        y: torch.Tensor = self._linear(x, self.packed, self.bias, "none", [], "")
        return y

    def followed_by(self, activation: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The layer fused with ``activation``, which saves a call; None where another layout would
        be needed or bfloat16 rounding between the two would be left out.
        """
        names = _ACTIVATIONS.get(activation)
        if type(self) is not PrepackedLinear or self.dtype != torch.float32 or names is None:
            return None

        def both(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self._linear(x, self.packed, self.bias, *names)
            return y

        return both

    @property
    def weight(self) -> torch.Tensor:
        """An empty stand-in of the right dtype, for modules that only look at ``weight.dtype`` or
        ``.device``.
        """
        return torch.empty(0, dtype=self.dtype)


class Float16StoredLinear(PrepackedLinear):
    """A layer stored in float16 by FBGEMM and computed in float32. Where float16 holds the weight
    exactly only times a power of two, results are divided by it, which is exact, too.
    """

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        if weight.dtype != torch.float32:
            raise RuntimeError("not float32")
        ops, power = torch.ops.quantized, _power_for_float16(weight)
        self._linear, self._power = ops.linear_dynamic_fp16, power
        self._unscale = torch.tensor(1 / power)  # half of what a number costs to multiply by
        self._bias = None if power == 1 else bias  # else FBGEMM adds it
        self.packed = ops.linear_prepack_fp16(weight * power, bias if power == 1 else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), float32."""
        y: torch.Tensor = self._linear(x, self.packed)
        if self._power == 1:
            return y
        if self._bias is None:
            return y.mul_(self._unscale)
        return torch.add(self._bias, y, alpha=1 / self._power, out=y)


def _power_for_float16(weight: torch.Tensor) -> float:
    """The power of two that makes each number of a weight in float32 one of float16: mostly 1 for
    what was saved in float16, and for what was saved in bfloat16 the one that brings its largest
    number near float16's. Raises RuntimeError where that would round one.
    """
    largest = float(weight.abs().max())
    _, exponent = math.frexp(largest)
    for power in (1.0, 2.0 ** (_FLOAT16_EXPONENT - exponent)):
        scaled = weight * power
        is_exact = torch.equal(scaled.half().float(), scaled)
        if is_exact and math.isfinite(largest) and power <= _LARGEST_POWER:
            return power
    raise RuntimeError("float16 would round the weight")


def is_int8(weight: torch.Tensor) -> bool:
    """Whether a weight is torchao's int8 with one scale for each output."""
    if type(weight).__name__ != "Int8Tensor":
        return False
    tensor: Any = weight
    return tensor.act_pre_scale is None and tensor.scale.numel() == tensor.shape[0]
