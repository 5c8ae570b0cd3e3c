"""Rows of a tensor as whole numbers of one or two bytes, and products of those as a tensor again.

A row's numbers are parts of its largest: 1/127 of it in one digit, 1/32,767 in two to the base 256.
Digits are unsigned, as processors multiply them: half of their range, 128 or 32,768, stands for 0,
so the products are too large by ``offset`` times the sum of the weights.

In compiled loops, or by torch's operators where Numba is missing. A test holds both to the same
numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from hf_runtime import log
from hf_runtime.errors import reason

from ..fused.compiled import load_kernel
from ..fused.team import Team

_LARGEST = {1: 127, 2: 32767}
_OFFSET = {1: 128, 2: 32768}
_LEAST_SIZE = 2.0**-110  # of a row's largest: a row of zeros has parts too
_FEW_NUMBERS = 4096  # less than the threads' meeting costs


def offset(num_digits: int) -> int:
    """What stands for 0."""
    return _OFFSET[num_digits]


class Loops(Protocol):
    """Both directions."""

    def digits(self, x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """x (rows, size) -> its digits, the high ones first, (num_digits * rows, size) uint8, and
        the size of each row's parts, (rows,) float32.
        """

    def combined(
        self,
        products: torch.Tensor,
        parts: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """products of the digits (num_digits * rows, out), ``offsets`` and ``bias`` (out,), all
        float32 -> (rows, out) in ``dtype``. Writes over ``products``.
        """


@cache
def loops(num_threads: int) -> Loops:
    """The compiled ones where they run; no failure of them is a reason for more than the others."""
    try:
        return CompiledLoops(num_threads)
    except ImportError as missing:
        log.info(f"int8 layers are slower on this CPU without Numba: {missing}")
    except Exception as failure:
        log.info(f"int8 layers' loops don't run: {type(failure).__name__}: {reason(failure, 120)}")
    return TorchLoops()


class TorchLoops:
    """By torch's operators."""

    def digits(self, x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As Loops has it."""
        x = x.float()
        sizes = torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True)
        parts = sizes.clamp_min_(_LEAST_SIZE) / _LARGEST[num_digits]
        numbers = (x / parts).round_().add_(_OFFSET[num_digits]).to(torch.int32)
        low = numbers & 255
        both = torch.cat([numbers >> 8, low]) if num_digits == 2 else low
        return both.to(torch.uint8), parts.squeeze(-1)

    def combined(
        self,
        products: torch.Tensor,
        parts: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """As Loops has it."""
        rows = len(parts)
        if len(products) > rows:
            products = torch.add(products[rows:], products[:rows], alpha=256)
        return products.sub_(offsets).mul_(parts.unsqueeze(-1)).add_(bias).to(dtype)


class CompiledLoops:
    """By compiled loops on torch's own threads. Raises ImportError without Numba."""

    def __init__(self, num_threads: int) -> None:
        self._team = Team(num_threads)
        self._digits, self._combine = (
            {
                dtype: load_kernel(name, str(dtype).removeprefix("torch."))
                for dtype in (torch.float32, torch.bfloat16)
            }
            for name in ("digits", "combine")
        )

    def digits(self, x: torch.Tensor, num_digits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As Loops has it."""
        rows, size = x.shape
        x = x.contiguous()
        parts = torch.empty(rows)
        out = torch.empty(num_digits * rows, size, dtype=torch.uint8)
        self._team.run(
            self._digits[x.dtype],
            *(rows, size, x.data_ptr(), parts.data_ptr(), out.data_ptr(), num_digits),
            parallel=rows > 1 and rows * size > _FEW_NUMBERS,
        )
        return out, parts

    def combined(
        self,
        products: torch.Tensor,
        parts: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """As Loops has it."""
        rows, size = len(parts), products.shape[1]
        out = torch.empty(rows, size, dtype=dtype)
        self._team.run(
            self._combine[dtype],
            *(rows, size, products.data_ptr(), parts.data_ptr(), offsets.data_ptr()),
            *(bias.data_ptr(), out.data_ptr(), len(products) // rows),
            parallel=rows > 1 and rows * size > _FEW_NUMBERS,
        )
        return out
