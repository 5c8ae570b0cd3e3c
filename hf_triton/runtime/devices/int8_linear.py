"""Linear layers of torchao's int8 weights on a CPU, as integer matrix products by oneDNN.

``onednn.qlinear_*`` are private operators of torch, which inductor emits for quantized models
(torch/_inductor/fx_passes/quantization.py). torch has no public way to them without compiling the
model. Where they are missing, fail, or do not multiply exactly, layers stay torchao's.

Rows of activations are quantized to integers of one or two bytes: a row's scale is 1/127 of its
largest magnitude for one byte, 1/32,767 for two. Two bytes are two digits to the base 256, each
multiplied by itself. Digits are unsigned, because processors multiply unsigned by signed bytes
(VNNI): the zero point, 128 or 32,768, stands for 0, and makes the products too large by
``zero_point`` times the sum of the weights.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..kernels.kernel_loading import load_kernel
from ..kernels.thread_team import ThreadTeam
from .linear_layouts import PrepackedLinear, is_int8

_ZERO_POINT = {1: 128, 2: 32768}

_MAX_INPUTS = 2**31 // (255 * 128)  # more products could overflow the int32 that sums them


class Int8Linear(PrepackedLinear):
    """``y = x @ weight.T + bias`` for a weight of torchao's ``Int8Tensor``.

    Each row of the input is quantized to two digits of 8 bits, which is
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
        self._kernels = RowKernels(torch.get_num_threads())
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


def zero_point(num_digits: int) -> int:
    """The integer that stands for 0."""
    return _ZERO_POINT[num_digits]


class RowKernels:
    """Quantizes rows and dequantizes products, by compiled kernels on torch's own threads. Raises
    ImportError without Numba.
    """

    def __init__(self, num_threads: int) -> None:
        self._team = ThreadTeam(num_threads)
        self._digits, self._combine = (
            {
                dtype: load_kernel(name, str(dtype).removeprefix("torch."))
                for dtype in (torch.float32, torch.bfloat16)
            }
            for name in ("digits", "combine")
        )

    def digits(self, x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x (rows, size) -> its digits, all rows' high ones first, (num_digits * rows, size) uint8,
        and each row's scale, (rows,) float32.
        """
        rows, size = x.shape
        x = x.contiguous()
        scales = torch.empty(rows)
        out = torch.empty(num_digits * rows, size, dtype=torch.uint8)
        self._team.run(
            self._digits[x.dtype],
            *(rows, size, x.data_ptr(), scales.data_ptr(), out.data_ptr(), num_digits),
            numbers=rows * size if rows > 1 else 0,
        )
        return out, scales

    def dequantized(
        self,
        products: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """products of the digits (num_digits * rows, out), ``offsets`` and ``bias`` (out,), all
        float32 -> (rows, out) in ``dtype``.
        """
        rows, size = len(scales), products.shape[1]
        out = torch.empty(rows, size, dtype=dtype)
        self._team.run(
            self._combine[dtype],
            *(rows, size, products.data_ptr(), scales.data_ptr(), offsets.data_ptr()),
            *(bias.data_ptr(), out.data_ptr(), len(products) // rows),
            numbers=rows * size if rows > 1 else 0,
        )
        return out
