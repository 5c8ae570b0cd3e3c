"""Linear layers whose weights are laid out in tiles (AMX), for kernels/product_kernels.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F

from ..kernels.kernel_loading import PRODUCT_KERNELS, load_kernel
from ..kernels.thread_team import ThreadTeam
from ..kernels.tiles import may_use_tiles
from .linear_layouts import PrepackedLinear

# As in product_kernels.py, which imports Numba: that takes longer than loading its kernels.
_PIECES = {torch.float32: 3, torch.bfloat16: 1}  # numbers in bfloat16 that make one
_BLOCK, _DEEP = 32, 32
_FOLLOWING = {"gelu": 1, "gelu_tanh": 2}
# Of a task, so that a core's second cache holds its rows, weights and sums. Rows of more numbers
# in bfloat16, all together, are multiplied in parts of fewer inputs.
_MOST_ROWS, _MOST_OUTPUTS = 256, 768
_MOST_ROW_PIECES, _MOST_INPUT_PIECES = 600_000, 1152
_PARTS = 4  # tasks for each thread, so that a late one holds up little
_KEPT_TASKS = 256  # divisions into tasks that are remembered
_OTHER_BYTES = 2**13  # of a thread's scratch: the end of a row, and what alignment skips
_LEAST_PRODUCTS = 2**19  # for fewer, starting the threads costs more than it saves


class TileLinear(PrepackedLinear):
    """``y = x @ weight.T + bias``, for weights in float32 or bfloat16; computed in float32, by
    products of bfloat16 alone.
    """

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Raises RuntimeError where the processor has no tiles."""
        if weight.dtype not in _PIECES or not may_use_tiles():
            raise RuntimeError("no tiles for this weight")
        dtype = str(weight.dtype).removeprefix("torch.")
        self._kernel = load_kernel("linear", dtype, PRODUCT_KERNELS)
        self._team = ThreadTeam(torch.get_num_threads())
        self.packed = _in_tiles(weight)
        bias = torch.zeros(self.out_features) if bias is None else bias.float()
        self._bias = F.pad(bias, (0, -len(bias) % _BLOCK))

    def forward(self, x: torch.Tensor, following: int = 0) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), in the weight's dtype."""
        if x.dtype != self.dtype or x.shape[-1] != self.in_features:
            raise RuntimeError(
                f"{tuple(x.shape)} in {x.dtype} is not (..., {self.in_features}) in {self.dtype}"
            )
        rows = x.reshape(-1, self.in_features).contiguous()
        y = rows.new_empty(len(rows), self.out_features)
        sizes = len(rows), self.out_features, self.in_features
        num_threads = self._team.num_threads
        *task, scratch_size = _task(*sizes, _PIECES[self.dtype], num_threads)
        self._team.run(
            self._kernel,
            *(*sizes, rows.data_ptr(), self.packed.data_ptr(), self._bias.data_ptr()),
            *(y.data_ptr(), following, _scratch(scratch_size * num_threads), scratch_size, *task),
            parallel=sizes[0] * sizes[1] * sizes[2] > _LEAST_PRODUCTS,
        )
        return y.view(*x.shape[:-1], self.out_features)

    def followed_by(self, activation: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Rounds to the weight's dtype between the two."""
        following = _FOLLOWING.get(activation)
        return None if following is None else partial(self.forward, following=following)


@lru_cache(_KEPT_TASKS)
def _task(
    num_rows: int, outputs: int, inputs: int, pieces: int, num_threads: int
) -> tuple[int, int, int, int]:
    """A task's rows, its outputs, how many inputs are multiplied at once, and the bytes of a
    thread's scratch.
    """
    rows = min(_MOST_ROWS, _whole(num_rows, _BLOCK))
    parts = max(1, num_threads * _PARTS * rows // (num_rows or 1))
    outputs = min(_MOST_OUTPUTS, _whole(-(-outputs // parts), _BLOCK))
    inputs = _whole(inputs, _DEEP)
    if rows * inputs * pieces > _MOST_ROW_PIECES:
        inputs = min(_MOST_INPUT_PIECES // pieces, inputs)
    return rows, outputs, inputs, rows * (inputs * 2 * pieces + outputs * 4) + _OTHER_BYTES


def _whole(number: int, part: int) -> int:
    """The least multiple that is as large."""
    return number + -number % part


def _in_tiles(weight: torch.Tensor) -> torch.Tensor:
    """(out, in) -> (32 outputs, 32 inputs, piece, 16 outputs, two inputs, output) int32, of two
    inputs' bfloat16 each. A block at a time: no more memory, and in the processor's caches.
    """
    (outputs, inputs), num_pieces = weight.shape, _PIECES[weight.dtype]
    sizes = -(-outputs // _BLOCK), -(-inputs // _DEEP), num_pieces, 2, 16, 16
    packed = torch.empty(sizes, dtype=torch.int32)
    for block, rows in zip(packed, weight.split(_BLOCK), strict=True):
        rest = F.pad(rows.float(), (0, -inputs % _DEEP, 0, -len(rows) % _BLOCK))
        for piece in range(num_pieces):
            part = rest.bfloat16()
            block[:, piece] = part.view(torch.int32).view(2, 16, -1, 16).permute(2, 0, 3, 1)
            rest = rest - part
    return packed


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.memory = torch.zeros(0, dtype=torch.uint8)


_scratches = _Scratch()


def _scratch(num_bytes: int) -> int:
    """Memory that is the calling thread's until it asks again."""
    if len(_scratches.memory) < num_bytes:
        _scratches.memory = torch.zeros(num_bytes, dtype=torch.uint8)
    return _scratches.memory.data_ptr()
