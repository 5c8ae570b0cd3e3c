"""Linear layers with prepacked weights for the CPU: one class for each layout.

The operators are private to torch, which has no public way to prepack a weight (``mkldnn``: what
inductor emits; ``quantized``: what dynamic quantization calls). Where one is missing or fails, its
layout is not used.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import nn

from ..kernels.compiled_loops import load_kernel, team_of

ZERO_POINT = {1: 128, 2: 32768}  # of integers of one and two bytes
_MAX_INPUTS = 2**31 // (255 * 128)  # more products could overflow the int32 that sums them
_FLOAT16_EXPONENT = 16  # its numbers are less than 2 to it
_LARGEST_POWER = 2.0**64  # a product of one that is larger could be too large for float32


class PrepackedLinear(nn.Module):
    """``y = x @ weight.T + bias``, ``weight`` (out_features, in_features) laid out by oneDNN."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._pack(weight.detach().contiguous(), None if bias is None else bias.detach())

    @staticmethod
    def joined(weights: list[torch.Tensor]) -> torch.Tensor:
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

    @property
    def weight(self) -> torch.Tensor:
        """An empty stand-in for modules that only look at its dtype or device."""
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
        bias = None if bias is None else bias * power
        self.packed = ops.linear_prepack_fp16(weight * power, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._linear(x, self.packed)
        return y if self._power == 1 else y.mul_(self._unscale)


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
    """True for torchao's int8 with one scale for each output."""
    if type(weight).__name__ != "Int8Tensor":
        return False
    tensor: Any = weight
    return tensor.act_pre_scale is None and tensor.scale.numel() == tensor.shape[0]


class Int8Linear(PrepackedLinear):
    """``y = x @ weight.T + bias`` for a weight of torchao's ``Int8Tensor``, as integer products by
    oneDNN (``onednn.qlinear_*``, which inductor emits for quantized models).

    Each row of the input is quantized to integers of two bytes, which is finer than bfloat16; or of
    one, where torchao's configuration quantizes activations as well. A row's scale is 1/127 of its
    largest magnitude for one byte, 1/32,767 for two. Two bytes are two digits to the base 256, each
    multiplied by itself. Digits are unsigned, because processors multiply unsigned by signed bytes
    (VNNI): the zero point, 128 or 32,768, stands for 0, and makes the products too large by
    the zero point times the sum of the weights. Sums of integers are exact, so a row's outputs
    don't depend on the rows beside it.
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
        if not is_supported or not multiplies_exactly():
            raise RuntimeError("no exact integer product for this weight")
        self._num_digits = 2 if tensor.act_quant_kwargs is None else 1
        self._matmul = _Int8Matmul(tensor.qdata, tensor.scale.reshape(-1).float())
        sums = tensor.qdata.sum(dim=1) * ZERO_POINT[self._num_digits]
        self._offsets = (sums * tensor.scale.reshape(-1).double()).float()  # (out,)
        self._bias = torch.zeros(self.out_features) if bias is None else bias.float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        if not len(rows):
            return x.new_empty(*x.shape[:-1], self.out_features)
        digits, scales = digits_of(rows, self._num_digits)
        products = self._matmul(digits)
        y = torch.empty(len(rows), self.out_features, dtype=self.dtype)
        team_of(torch.get_num_threads()).run(
            load_kernel("combine", self.dtype),
            *(*y.shape, products.data_ptr(), scales.data_ptr(), self._offsets.data_ptr()),
            *(self._bias.data_ptr(), y.data_ptr(), self._num_digits),
            numbers=y.numel() if len(rows) > 1 else 0,
        )
        return y.view(*x.shape[:-1], self.out_features)


class _Int8Matmul:
    """A weight (out, in) int8 and a scale (out,) for each output, laid out by oneDNN."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
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
def multiplies_exactly() -> bool:
    """Without VNNI, x86 adds two products in 16 bits and saturates (``vpmaddubsw``)."""
    for left, right in ((255, 127), (255, -128)):
        x = torch.full((8, 64), left, dtype=torch.uint8)
        product = _Int8Matmul(torch.full((32, 64), right, dtype=torch.int8), torch.ones(32))
        if not bool((product(x) == 64 * left * right).all()):
            return False
    return True


def digits_of(x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, size) -> its digits, all rows' high ones first, (num_digits * rows, size) uint8, and
    each row's scale, (rows,) float32.
    """
    rows, size = x.shape
    x = x.contiguous()
    scales = torch.empty(rows)
    out = torch.empty(num_digits * rows, size, dtype=torch.uint8)
    team_of(torch.get_num_threads()).run(
        load_kernel("digits", x.dtype),
        *(rows, size, x.data_ptr(), scales.data_ptr(), out.data_ptr(), num_digits),
        numbers=rows * size if rows > 1 else 0,
    )
    return out, scales
