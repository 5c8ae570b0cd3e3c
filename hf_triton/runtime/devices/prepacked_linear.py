"""Linear layers with prepacked weights, in whichever layout is fastest on the CPU at hand.

``F.linear`` in float32 calls a general matrix product that packs the weight at every call. Two
layouts pack it once:

- oneDNN's: about half the time on processors with AVX-512 (less is saved in bfloat16);
- FBGEMM's, for float32: the weight is stored in float16 and widened as it is read, computed in
  float32. Generating for one caller waits for memory, and this reads half as much of it: a third of
  oneDNN's time for one row, the same for 32. It is taken only where every value of the weight is
  a float16 exactly, as in a float16 checkpoint, so nothing is rounded.

Which is faster differs by processor and shape, so each shape is timed, with its weight out of the
processor's caches as it is among the model's other weights, and the fastest layout is taken. Times
that nothing disturbed are kept for the machine's next models.
Layers that share their input (query, key and value; gate and up) become one: fewer starts of the
thread team, which take 10 % of a step where a weight is read for a single row.

Weights that torchao has quantized to int8 have a layout of their own (int8_linear.py). The others
are in linear_layouts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .int8_linear import Int8Linear
from .layout_times import LayoutTimes
from .linear_layouts import Float16StoredLinear, PrepackedLinear, is_int8

_ROWS = (1, 32)  # decoding one sequence, and many: the shapes of generation
_MOST_OTHER_BYTES = 2**26  # more than a core keeps in its caches
# Joined layers save calls, and compiled loops the copying of their outputs into one.
_JOINING_SAVES = 1.25
# A plain layer that is timed as a little faster is a tenth slower in a model: noise is more than
# what it can gain, and its call is the module's.
_PACKING_SAVES = 1.1
# Children that get the same input one after the other in transformers' models.
_SHARED_INPUT = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("query", "key", "value"),
    ("query_proj", "key_proj", "value_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("q", "k", "v"),
)
# Children whose weight the parent reads directly: Mamba's steps.
READ_BY_PARENT = ("dt_proj",)
_FORMS = (Float16StoredLinear, PrepackedLinear)
_INT8_FORMS = (Int8Linear,)


class _SharedInput:
    """Linear layers with one input, computed as one. The first one called computes all; the others
    return their part of it.
    """

    def __init__(self, linear: PrepackedLinear, sizes: list[int]) -> None:
        self.linear, self.sizes = linear, sizes
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
        """The properties that its time depends on."""
        return (*self.weight.shape, self.weight.dtype, self.bias is not None, is_int8(self.weight))


def prepack(model: nn.Module, rows: tuple[int, ...] = _ROWS) -> int:
    """Replaces the linear layers of a CPU model by prepacked ones where that is faster; returns how
    many. Layers that share their input are computed as one. ``rows``: the numbers of rows that
    matter.

    Must run on the thread that will run the model, with its thread count: the choice is timed.
    """
    num_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    others = torch.zeros(min(num_bytes, _MOST_OTHER_BYTES), dtype=torch.uint8)
    choice = _Choice(rows, others)
    joins = _SHARED_INPUT if _shares_inputs(model) else ()
    with choice.times.keeping():
        return sum(_prepack_layers(parent, choice, joins) for parent in list(model.modules()))


def _prepack_layers(parent: nn.Module, choice: _Choice, joins: tuple[tuple[str, ...], ...]) -> int:
    """As ``prepack``, of a module's own layers."""
    replaced = 0
    layers = {layer.name: layer for layer in _linear_layers(parent)}
    for names in joins:
        group = [layers[name] for name in names if name in layers]
        linear = choice.joined(group) if len(group) == len(names) else None
        if linear is not None:
            shared = _SharedInput(linear, [layer.weight.shape[0] for layer in group])
            for index, layer in enumerate(group):
                setattr(parent, layer.name, LinearPart(shared, index))
                del layers[layer.name]
            replaced += len(group)
    for layer in layers.values():
        linear = choice.packed(layer)
        if linear is not None:
            setattr(parent, layer.name, linear)
            replaced += 1
    return replaced


def _shares_inputs(model: nn.Module) -> bool:
    """True where layers of these names have one input: not in cross-attention, in DeBERTa with a
    convolution, nor in code that is not transformers' own.
    """
    config = getattr(model, "config", None)
    # Not fused, it would multiply positions by all three in each forward, and use two.
    is_convolved = hasattr(config, "share_att_key") and getattr(config, "conv_kernel_size", 0) > 0
    is_encoder_decoder = getattr(config, "is_encoder_decoder", True)
    return (
        not is_encoder_decoder
        and not is_convolved
        and type(model).__module__.startswith("transformers.")
    )


class _Choice:
    """Times each kind of layer once in each form and remembers the seconds."""

    def __init__(self, rows: tuple[int, ...], others: torch.Tensor) -> None:
        self.times = LayoutTimes(rows, others)
        self._joins: dict[tuple[object, ...], bool] = {}

    def packed(self, layer: _Layer) -> PrepackedLinear | None:
        """The layer's fastest form, or None if that is the unchanged layer."""
        linear, packed_s = self._fastest([layer])
        return linear if self._plain_seconds(layer) * _PACKING_SAVES > packed_s else None

    def joined(self, layers: list[_Layer]) -> PrepackedLinear | None:
        """One layer for all, if it is not slower beyond what it saves elsewhere."""
        if len({(layer.weight.shape[1], *layer.key[2:]) for layer in layers}) > 1:
            return None
        key = tuple(layer.key for layer in layers)
        if not self._joins.get(key, True):
            return None
        linear, joined_s = self._fastest(layers)
        if key not in self._joins:
            apart_s = sum(
                min(self._plain_seconds(layer), self._fastest([layer])[1]) for layer in layers
            )
            self._joins[key] = joined_s <= apart_s * _JOINING_SAVES
        return linear if self._joins[key] else None

    def _fastest(self, layers: list[_Layer]) -> tuple[PrepackedLinear | None, float]:
        """The fastest form of these layers as one, and its seconds; infinite where none works."""
        fastest: tuple[PrepackedLinear | None, float] = (None, float("inf"))
        forms = _INT8_FORMS if is_int8(layers[0].weight) else _FORMS
        keys = {form: repr((form.__name__, *(layer.key for layer in layers))) for form in forms}
        for form in sorted(forms, key=lambda form: self.times.known(keys[form])):
            if self.times.known(keys[form]) >= fastest[1]:
                continue
            try:
                linear = _joined(layers, form)
                seconds = self.times.of(keys[form], linear, layers[0].weight)
            except (AttributeError, ImportError, RuntimeError):
                continue  # not available in this installation or for this weight
            if seconds < fastest[1]:
                fastest = (linear, seconds)
        return fastest

    def _plain_seconds(self, layer: _Layer) -> float:
        return self.times.of(repr(("plain", layer.key)), layer.module, layer.weight)


def _joined(layers: list[_Layer], form: type[PrepackedLinear]) -> PrepackedLinear:
    """One layer with the outputs of all, in order."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    weight = form.joined([layer.weight.detach() for layer in layers])
    return form(weight, torch.cat(biases) if biases else None)


def _linear_layers(parent: nn.Module) -> Iterator[_Layer]:
    for name, child in list(parent.named_children()):
        weight, bias = _linear_weight(child)
        if weight is not None and name not in READ_BY_PARENT:
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
    if type(weight) not in (torch.Tensor, nn.Parameter) and not is_int8(weight):
        return None, None  # an unknown kind of quantization
    return weight, bias if isinstance(bias, torch.Tensor) else None
