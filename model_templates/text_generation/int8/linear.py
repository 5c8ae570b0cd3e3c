"""Linear layers of torchao's int8 weights on a CPU, multiplied as whole numbers by oneDNN.

``onednn.qlinear_*`` is what inductor emits for quantized models, private to torch: where it is
missing, fails, or does not multiply exactly, layers stay torchao's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from hf_runtime.devices.linear_forms import PrepackedLinear, is_int8
from hf_runtime.devices.prepacked_linear import prepack
from torch import nn

from .arithmetic import loops, offset

_MOST_INPUTS = 2**31 // (255 * 128)  # as many products as an int32 holds the sum of


def prepack_all(model: nn.Module) -> int:
    """``prepack``, with int8 layers in their form."""
    return prepack(model, int8_forms=(Int8Linear,))


class Int8Linear(PrepackedLinear):
    """``y = x @ weight.T + bias`` for a weight of torchao's ``Int8Tensor``.

    Each row of the input is written as whole numbers (whole_numbers.py): in two digits of 8 bits,
    which is finer than bfloat16; or in one, where torchao's configuration quantizes activations as
    well. Sums of whole numbers are exact: a row's outputs don't depend on the rows beside it.
    """

    @staticmethod
    def joined(weights: list[torch.Tensor]) -> torch.Tensor:
        if len(weights) == 1:
            return weights[0]
        parts: list[Any] = list(weights)
        first = parts[0]
        joined: torch.Tensor = type(first)(
            torch.cat([part.qdata for part in parts]),
            torch.cat([part.scale for part in parts]),
            first.block_size,
            first.dtype,
            act_quant_kwargs=first.act_quant_kwargs,
        )
        return joined

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        tensor: Any = weight
        is_fit = is_int8(weight) and self.in_features <= _MOST_INPUTS
        if not is_fit or not _multiplies_exactly():
            raise RuntimeError("no product of whole numbers for it")
        self._num_digits = 2 if tensor.act_quant_kwargs is None else 1
        self._loops = loops(torch.get_num_threads())
        self._product = _Product(tensor.qdata, tensor.scale.reshape(-1).float())
        sums = tensor.qdata.sum(dim=1) * offset(self._num_digits)
        self._offsets = (sums * tensor.scale.reshape(-1).double()).float()  # (out,)
        self._bias = torch.zeros(self.out_features) if bias is None else bias.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), in the weight's dtype."""
        rows = x.reshape(-1, self.in_features)
        if not len(rows):
            return x.new_empty(*x.shape[:-1], self.out_features)
        digits, parts = self._loops.digits(rows, self._num_digits)
        products = self._product(digits)
        y = self._loops.combined(products, parts, self._offsets, self._bias, self.dtype)
        return y.view(*x.shape[:-1], self.out_features)


class _Product:
    """A weight (out, in) int8 and a scale (out,) for each output, laid out by oneDNN."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        """Raises AttributeError or RuntimeError where torch can't lay the weight out so."""
        self._linear = torch.ops.onednn.qlinear_pointwise
        self._packed = torch.ops.onednn.qlinear_prepack(weight.contiguous(), None)
        self._scales, self._zeros = scales, torch.zeros(len(scales), dtype=torch.int32)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, in) uint8 -> (rows, out) float32: exact sums, rounded when they are scaled."""
        weight = self._packed, self._scales, self._zeros
        y: torch.Tensor = self._linear(
            *(x, 1.0, 0, *weight, None, 1.0, 0, torch.float32, "none", [], "")
        )
        return y


@cache
def _multiplies_exactly() -> bool:
    """Whether this processor's products of int8 are exact: without VNNI, sums of two may be cut
    off at 16 bits.
    """
    for left, right in ((255, 127), (255, -128)):
        x = torch.full((8, 64), left, dtype=torch.uint8)
        product = _Product(torch.full((32, 64), right, dtype=torch.int8), torch.ones(32))
        if not bool((product(x) == 64 * left * right).all()):
            return False
    return True
