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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_ROWS = (1, 32)  # decode of one sequence, decode of many: the shapes that generation lives on
_REPEATS = 5
_MIN_GAIN = 1.05
# Children that transformers' decoders give the same tensor, one after the other.
_SHARED_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


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


class _SharedInput:
    """Linear layers that are given the same tensor one after the other, computed as one.

    The first one asked computes all; the others hand out their part of it.
    """

    def __init__(self, layers: list[_Layer]) -> None:
        self.sizes = [layer.weight.shape[0] for layer in layers]
        self.linear = _joined(layers)
        self._x: torch.Tensor | None = None
        self._parts: tuple[torch.Tensor, ...] = ()
        self._num_left = 0

    def part(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., sizes[index]), a view of all parts' (..., sum(sizes))."""
        if x is not self._x:
            self._x, self._num_left = x, len(self.sizes)
            self._parts = self.linear(x).split(self.sizes, dim=-1)
        y = self._parts[index]
        self._num_left -= 1
        if not self._num_left:
            self._x, self._parts = None, ()
        return y


class LinearPart(nn.Module):
    """One of several linear layers that are computed together."""

    def __init__(self, shared: _SharedInput, index: int) -> None:
        super().__init__()
        self.shared, self.index = shared, index
        self.in_features, self.out_features = shared.linear.in_features, shared.sizes[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), in the weight's dtype."""
        return self.shared.part(self.index, x)

    @property
    def weight(self) -> torch.Tensor:
        """As PrepackedLinear's."""
        return self.shared.linear.weight


@dataclass(frozen=True)
class _Layer:
    """A plain linear layer: its name in its parent, its weight (out, in) and its bias."""

    name: str
    module: nn.Module
    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def key(self) -> tuple[object, ...]:
        """What the time it takes depends on."""
        return (*self.weight.shape, self.weight.dtype, self.bias is not None)


def prepack(model: nn.Module) -> int:
    """Replaces the linear layers of a CPU model by prepacked ones where that is faster; returns how
    many. Layers that share their input are computed as one.

    Must run on the thread that will run the model, with its thread count: the choice is timed.
    """
    choice = _Choice()
    replaced = 0
    joins = _SHARED_INPUT if _shares_inputs(model) else ()
    for parent in list(model.modules()):
        layers = {layer.name: layer for layer in _linear_layers(parent)}
        for names in joins:
            group = [layers[name] for name in names if name in layers]
            if len(group) == len(names) and choice.joined_is_faster(group):
                shared = _SharedInput(group)
                for index, layer in enumerate(group):
                    setattr(parent, layer.name, LinearPart(shared, index))
                    del layers[layer.name]
                replaced += len(group)
        for layer in layers.values():
            if choice.packed_is_faster(layer):
                setattr(parent, layer.name, PrepackedLinear(layer.weight, layer.bias))
                replaced += 1
    return replaced


def _shares_inputs(model: nn.Module) -> bool:
    """True where layers of these names have one input: not in cross-attention, nor in code that is
    not transformers' own.
    """
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", True)
    return not is_encoder_decoder and type(model).__module__.startswith("transformers.")


class _Choice:
    """Times each kind of layer once and remembers which form was faster."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], tuple[float, float]] = {}
        self._joined: dict[tuple[object, ...], bool] = {}

    def packed_is_faster(self, layer: _Layer) -> bool:
        """Whether the prepacked form of one layer is."""
        plain_s, packed_s = self._times(layer)
        return plain_s > packed_s * _MIN_GAIN

    def joined_is_faster(self, layers: list[_Layer]) -> bool:
        """Whether one prepacked layer for all is; a tie is won, for the calls that it saves."""
        if len({(layer.weight.shape[1], *layer.key[2:]) for layer in layers}) > 1:
            return False
        key = tuple(layer.key for layer in layers)
        if key not in self._joined:
            separate_s = sum(min(self._times(layer)) for layer in layers)
            self._joined[key] = _packed_seconds(lambda: _joined(layers), layers[0]) <= separate_s
        return self._joined[key]

    def _times(self, layer: _Layer) -> tuple[float, float]:
        """Seconds of the plain and of the prepacked form."""
        if layer.key not in self._seconds:
            packed_s = _packed_seconds(lambda: PrepackedLinear(layer.weight, layer.bias), layer)
            self._seconds[layer.key] = _seconds(layer.module, layer), packed_s
        return self._seconds[layer.key]


def _joined(layers: list[_Layer]) -> PrepackedLinear:
    """One layer with the outputs of all, in order."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    weight = torch.cat([layer.weight.detach() for layer in layers])
    return PrepackedLinear(weight, torch.cat(biases) if biases else None)


def _linear_layers(parent: nn.Module) -> Iterator[_Layer]:
    for name, child in list(parent.named_children()):
        weight, bias = _linear_weight(child)
        if weight is not None:
            yield _Layer(name, child, weight, bias)


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


def _packed_seconds(make: Callable[[], PrepackedLinear], layer: _Layer) -> float:
    """The time of a prepacked layer; infinite where this build of torch can't make or run it."""
    try:
        return _seconds(make(), layer)
    except (AttributeError, RuntimeError):
        return float("inf")


@torch.inference_mode()
def _seconds(run: Callable[[torch.Tensor], torch.Tensor], layer: _Layer) -> float:
    """The best of a few runs for each number of rows, added up."""
    total = 0.0
    for rows in _ROWS:
        x = torch.ones(1, rows, layer.weight.shape[1], dtype=layer.weight.dtype)
        run(x)
        total += min(_once(run, x) for _ in range(_REPEATS))
    return total


def _once(run: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> float:
    start = time.perf_counter()
    run(x)
    return time.perf_counter() - start
