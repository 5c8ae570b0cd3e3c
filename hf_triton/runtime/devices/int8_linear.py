"""Linear layers of torchao's int8 weights on a CPU, as integer matrix products by oneDNN.

``onednn.qlinear_*`` are private operators of torch, which inductor emits for quantized models
(torch/_inductor/fx_passes/quantization.py). torch has no public way to them without compiling the
model. Where they are missing, fail, or do not multiply exactly, layers stay torchao's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from .linear_layouts import PrepackedLinear, is_int8
from .row_quantization import row_kernels, zero_point

_MAX_INPUTS = 2**31 // (255 * 128)  # more products could overflow the int32 that sums them


class Int8Linear(PrepackedLinear):
    """``y = x @ weight.T + bias`` for a weight of torchao's ``Int8Tensor``.

    Each row of the input is quantized (row_quantization.py): to two digits of 8 bits, which is
    finer than bfloat16; or to one, where torchao's configuration quantizes activations as well.
    Sums of integers are exact, so a row's outputs don't depend on the rows beside it.
    """

    @staticmethod
    def joined(weights: list[torch.Tensor]) -> torch.Tensor:
        if len(weights) == 1:
            return weights[0]
        tensors: list[Any] = list(weights)
        first = tensors[0]
        joined: torch.Tensor = type(first)(
            torch.cat([tensor.qdata for tensor in tensors]),
            torch.cat([tensor.scale for tensor in tensors]),
            first.block_size,
            first.dtype,
            act_quant_kwargs=first.act_quant_kwargs,
        )
        return joined

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        tensor: Any = weight
        is_supported = is_int8(weight) and self.in_features <= _MAX_INPUTS
        if not is_supported or not _multiplies_exactly():
            raise RuntimeError("no exact integer product for this weight")
        self._num_digits = 2 if tensor.act_quant_kwargs is None else 1
        self._kernels = row_kernels(torch.get_num_threads())
        self._matmul = _Int8Matmul(tensor.qdata, tensor.scale.reshape(-1).float())
        sums = tensor.qdata.sum(dim=1) * zero_point(self._num_digits)
        self._offsets = (sums * tensor.scale.reshape(-1).double()).float()  # (out,)
        self._bias = torch.zeros(self.out_features) if bias is None else bias.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), in the weight's dtype."""
        rows = x.reshape(-1, self.in_features)
        if not len(rows):
            return x.new_empty(*x.shape[:-1], self.out_features)
        digits, scales = self._kernels.digits(rows, self._num_digits)
        products = self._matmul(digits)
        y = self._kernels.dequantized(products, scales, self._offsets, self._bias, self.dtype)
        return y.view(*x.shape[:-1], self.out_features)


class _Int8Matmul:
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
    """Whether this processor's products of int8 are exact. Without VNNI, x86 adds two products in
    16 bits and saturates (``vpmaddubsw``).
    """
    for left, right in ((255, 127), (255, -128)):
        x = torch.full((8, 64), left, dtype=torch.uint8)
        product = _Int8Matmul(torch.full((32, 64), right, dtype=torch.int8), torch.ones(32))
        if not bool((product(x) == 64 * left * right).all()):
            return False
    return True
