"""Quantizes rows of activations to integers of one or two bytes, and dequantizes matrix products.

A row's scale is 1/127 of its largest magnitude for one byte, 1/32,767 for two. Two bytes are two
digits to the base 256, each multiplied by itself. Digits are unsigned, because processors multiply
unsigned by signed bytes (VNNI): the zero point, 128 or 32,768, stands for 0, and makes the products
too large by ``zero_point`` times the sum of the weights.

Compiled kernels do it, or torch's operators where Numba is missing. A test holds both to the same
numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch

from .. import log
from ..errors import reason
from ..kernels.kernel_loading import load_kernel
from ..kernels.thread_team import ThreadTeam

_LARGEST = {1: 127, 2: 32767}
_ZERO_POINT = {1: 128, 2: 32768}
_SMALLEST_MAXIMUM = 2.0**-110  # stands for a row's largest magnitude where that is 0 or less
_MIN_PARALLEL_SIZE = 4096  # numbers; for fewer, starting the threads costs more than it saves


def zero_point(num_digits: int) -> int:
    """The integer that stands for 0."""
    return _ZERO_POINT[num_digits]


class RowKernels(Protocol):
    """Quantizes rows and dequantizes products."""

    def digits(self, x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x (rows, size) -> its digits, all rows' high ones first, (num_digits * rows, size) uint8,
        and each row's scale, (rows,) float32.
        """

    def dequantized(
        self,
        products: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """products of the digits (num_digits * rows, out), ``offsets`` and ``bias`` (out,), all
        float32 -> (rows, out) in ``dtype``. Writes over ``products``.
        """


@cache
def row_kernels(num_threads: int) -> RowKernels:
    """The compiled kernels where they run, else torch's operators; never an error."""
    try:
        return CompiledKernels(num_threads)
    except ImportError as missing:
        log.info(f"int8 layers are slower on this CPU without Numba: {missing}")
    except Exception as failure:
        log.info(f"int8 layers' loops don't run: {type(failure).__name__}: {reason(failure, 120)}")
    return TorchKernels()


class TorchKernels:
    """By torch's operators."""

    def digits(self, x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As RowKernels has it."""
        x = x.float()
        sizes = torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True)
        scales = sizes.clamp_min_(_SMALLEST_MAXIMUM) / _LARGEST[num_digits]
        numbers = (x / scales).round_().add_(_ZERO_POINT[num_digits]).to(torch.int32)
        low = numbers & 255
        both = torch.cat([numbers >> 8, low]) if num_digits == 2 else low
        return both.to(torch.uint8), scales.squeeze(-1)

    def dequantized(
        self,
        products: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """As RowKernels has it."""
        rows = len(scales)
        if len(products) > rows:
            products = torch.add(products[rows:], products[:rows], alpha=256)
        return products.sub_(offsets).mul_(scales.unsqueeze(-1)).add_(bias).to(dtype)


class CompiledKernels:
    """Kernels compiled by Numba, on torch's own threads. Raises ImportError without Numba."""

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
        """As RowKernels has it."""
        rows, size = x.shape
        x = x.contiguous()
        scales = torch.empty(rows)
        out = torch.empty(num_digits * rows, size, dtype=torch.uint8)
        self._team.run(
            self._digits[x.dtype],
            *(rows, size, x.data_ptr(), scales.data_ptr(), out.data_ptr(), num_digits),
            parallel=rows > 1 and rows * size > _MIN_PARALLEL_SIZE,
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
        """As RowKernels has it."""
        rows, size = len(scales), products.shape[1]
        out = torch.empty(rows, size, dtype=dtype)
        self._team.run(
            self._combine[dtype],
            *(rows, size, products.data_ptr(), scales.data_ptr(), offsets.data_ptr()),
            *(bias.data_ptr(), out.data_ptr(), len(products) // rows),
            parallel=rows > 1 and rows * size > _MIN_PARALLEL_SIZE,
        )
        return out
