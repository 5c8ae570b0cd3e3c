"""Linear layers whose weights oneDNN has laid out for the CPU at hand.

``F.linear`` in float32 goes to a general matrix product that lays the weight out anew at every
call; laid out once, the same product takes about half the time on processors with AVX-512 (and
saves less in bfloat16). Which is faster differs by processor and shape, so each shape is timed and
the faster form kept.

The operator is private to torch (``torch.ops.mkldnn``, what inductor emits): where it is missing or
fails, layers stay as they are. A test holds both forms to the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_ROWS = (1, 32)  # decode of one sequence, decode of many: the shapes that generation lives on
_REPEATS = 5
_MIN_GAIN = 1.05


class PrepackedLinear(nn.Module):
    """``y = x @ weight.T + bias``, ``weight`` (out_features, in_features) laid out by oneDNN."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        reorder, self._linear = _operators()
        self.packed = reorder(weight.detach().contiguous(), None)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), in the weight's dtype."""
        y: torch.Tensor = self._linear(x, self.packed, self.bias, "none", [], "")
        return y

    @property
    def weight(self) -> torch.Tensor:
        """An empty stand-in of the right dtype, for modules that only look at ``weight.dtype`` or
        ``.device``.
        """
        return torch.empty(0, dtype=self.dtype)


def _operators() -> tuple[Any, Any]:
    """The private operators that lay a weight out and that multiply by it."""
    ops = torch.ops.mkldnn
    return ops._reorder_linear_weight, ops._linear_pointwise  # noqa: SLF001


def prepack(model: nn.Module) -> int:
    """Replaces the linear layers of a CPU model by prepacked ones where that is faster; returns how
    many.

    Must run on the thread that will run the model, with its thread count: the choice is timed.
    """
    faster: dict[tuple[int, int, torch.dtype, bool], bool] = {}
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight, bias = _linear_weight(child)
            if weight is None:
                continue
            key = (*weight.shape, weight.dtype, bias is not None)
            if key not in faster:
                faster[key] = _prepacked_is_faster(child, weight, bias)
            if faster[key]:
                setattr(parent, name, PrepackedLinear(weight, bias))
                replaced += 1
    return replaced


def _linear_weight(module: nn.Module) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The (out, in) weight and the bias of a plain linear layer (GPT-2's ``Conv1D`` is one,
    transposed).
    """
    from transformers.pytorch_utils import Conv1D

    # FalconLinear is a Linear that rounds between product and bias; exact types leave out adapters.
    if type(module) is nn.Linear or type(module).__name__ == "FalconLinear":
        weight, bias = module.weight, module.bias
    elif type(module) is Conv1D:
        weight, bias = module.weight.t(), module.bias
    else:
        return None, None
    if not isinstance(weight, torch.Tensor) or weight.device.type != "cpu":
        return None, None
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None, None
    return weight, bias if isinstance(bias, torch.Tensor) else None


def _prepacked_is_faster(plain: nn.Module, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    try:
        packed = PrepackedLinear(weight, bias)
        xs = [torch.ones(1, rows, weight.shape[1], dtype=weight.dtype) for rows in _ROWS]
        plain_s = sum(_seconds(plain, x) for x in xs)
        packed_s = sum(_seconds(packed, x) for x in xs)
    except (AttributeError, RuntimeError):  # no such operator in this build of torch, or no oneDNN
        return False
    return plain_s > packed_s * _MIN_GAIN


def _seconds(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    """The best of a few runs, in seconds."""
    layer(x)
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        layer(x)
        best = min(best, time.perf_counter() - start)
    return best
