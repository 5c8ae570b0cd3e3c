"""Linear layers of a CPU model with prepacked weights.

``F.linear`` in float32 calls a general matrix product that packs the weight at every call. Two
layouts pack it once:

- oneDNN's: about half the time on processors with AVX-512 (less is saved in bfloat16);
- FBGEMM's, for float32: the weight is stored in float16 and computed in float32, where every value
  of it is a float16 exactly. Half of oneDNN's time for one row, the same for 32 to 256.

Layers that share their input (query, key and value; gate and up) become one: fewer starts of the
thread team, which take 10 % of a step where a weight is read for a single row.

The operators are private to torch, which has no public way to prepack a weight (``mkldnn``: what
inductor emits; ``quantized``: what dynamic quantization calls). Where one is missing or fails, its
layout is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import nn

from ..kernels.compiled_loops import load_kernel, team_of

ZERO_POINT = {1: 128, 2: 32768}  # of integers of one and two bytes
_MAX_INPUTS = 2**31 // (255 * 128)  # more products could overflow the int32 that sums them
_FLOAT16_EXPONENT = 16  # its numbers are less than 2 to it
_LARGEST_POWER = 2.0**64  # a product of one that is larger could be too large for float32
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
_READ_BY_PARENT = ("dt_proj",)
# Children of other names too, by the parent's class in transformers.
_READ_BY_CLASS = {
    "LSHSelfAttention": ("query_key", "value"),  # Reformer's, after the first token
    "LongcatFlashTopkRouter": ("classifier",),
    "MobileBertLMPredictionHead": ("decoder", "dense"),
    "NeoMMEForMaskedLM": ("unembedding_projection",),
    "RwkvFeedForward": ("value",),  # RWKV's first forward divides both
    "RwkvSelfAttention": ("output",),
    "TDNNLayer": ("kernel",),
    "WavLMAttention": ("q_proj", "k_proj", "v_proj", "out_proj"),
}
_Layer = tuple[torch.Tensor, torch.Tensor | None]  # its weight (out, in) and its bias


class PrepackedLinear(nn.Module):
    """``y = x @ weight.T + bias``, ``weight`` (out_features, in_features) laid out by oneDNN: that
    of one layer, or of several one after the other.
    """

    def __init__(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = sum(map(len, weights)), weights[0].shape[1]
        self.dtype = weights[0].dtype
        self._pack([one.detach() for one in weights], None if bias is None else bias.detach())

    def _pack(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        """Raises AttributeError or RuntimeError where torch can't lay the weights out so."""
        ops = torch.ops.mkldnn
        self._linear = ops._linear_pointwise  # noqa: SLF001
        packed = ops._reorder_linear_weight(torch.cat([*weights]), None)  # noqa: SLF001
        self.packed, self.bias = packed, bias

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

    def _pack(self, weights: Sequence[torch.Tensor], bias: torch.Tensor | None) -> None:
        if self.dtype != torch.float32:
            raise RuntimeError("not float32")
        weight = torch.cat([*weights])
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

    def _pack(self, weights: Sequence[Any], bias: torch.Tensor | None) -> None:
        is_supported = all(map(is_int8, weights)) and self.in_features <= _MAX_INPUTS
        if not is_supported or not multiplies_exactly():
            raise RuntimeError("no exact integer product for this weight")
        self._num_digits = 2 if weights[0].act_quant_kwargs is None else 1
        whole = torch.cat([one.qdata for one in weights])
        scales = torch.cat([one.scale.reshape(-1) for one in weights])
        self._matmul = _Int8Matmul(whole, scales.float())
        sums = whole.sum(dim=1) * ZERO_POINT[self._num_digits]
        self._offsets = (sums * scales.double()).float()  # (out,)
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


def is_read_by(parent: nn.Module, name: str) -> bool:
    """True if a parent itself reads the weight of its child of that name."""
    return name in (*_READ_BY_PARENT, *_READ_BY_CLASS.get(type(parent).__name__, ()))


class _SharedInput:
    """Linear layers with one input: the first one called computes for the others too."""

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
    def __init__(self, shared: _SharedInput, index: int) -> None:
        super().__init__()
        self.shared, self.index = shared, index
        self.in_features, self.out_features = shared.linear.in_features, shared.sizes[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.part(self.index, x)

    @property
    def weight(self) -> torch.Tensor:
        return self.shared.linear.weight


def prepack(model: nn.Module, *, many_rows: bool = False) -> int:
    """Replaces the linear layers of a CPU model by prepacked ones; returns how many. Layers that
    share their input are computed as one. ``many_rows``: it computes hundreds at once, for which
    AVX-512 multiplies oneDNN's layout faster.

    Must run on the thread that will run the model, with its thread count.
    """
    in_half = not (many_rows and torch.backends.cpu.get_cpu_capability() == "AVX512")
    joins = _SHARED_INPUT if _shares_inputs(model) else ()
    return sum(_prepack_layers(parent, joins, in_half) for parent in list(model.modules()))


def _prepack_layers(parent: nn.Module, joins: tuple[tuple[str, ...], ...], in_half: bool) -> int:
    layers = {}
    for name, child in parent.named_children():
        layer = _plain_layer(child)
        if layer is not None and not is_read_by(parent, name):
            layers[name] = layer
    num_found = len(layers)
    for names in (*joins, *[(name,) for name in layers]):
        group = [layers[name] for name in names if name in layers]
        linear = _packed(group, in_half) if len(group) == len(names) else None
        if linear is None:
            continue
        shared = _SharedInput(linear, [len(weight) for weight, _ in group])
        for index, name in enumerate(names):
            setattr(parent, name, LinearPart(shared, index) if group[1:] else linear)
            del layers[name]
    return num_found - len(layers)


def _shares_inputs(model: nn.Module) -> bool:
    """False for cross-attention, DeBERTa with a convolution, and models of others' code."""
    config = getattr(model, "config", None)
    # Not fused, it would multiply positions by all three in each forward, and use two.
    is_convolved = hasattr(config, "share_att_key") and getattr(config, "conv_kernel_size", 0) > 0
    is_encoder_decoder = getattr(config, "is_encoder_decoder", True)
    return (
        not is_encoder_decoder
        and not is_convolved
        and type(model).__module__.startswith("transformers.")
    )


def _packed(layers: list[_Layer], in_half: bool) -> PrepackedLinear | None:
    """One layer with the outputs of all, in order; None where torch can't lay the weights out."""
    kinds = {(w.shape[1], w.dtype, bias is not None, is_int8(w)) for w, bias in layers}
    if len(kinds) > 1:
        return None
    weights = [weight for weight, _ in layers]
    biases = [bias for _, bias in layers if bias is not None]
    forms: list[type[PrepackedLinear]] = [PrepackedLinear]
    if is_int8(weights[0]):
        forms = [Int8Linear]
    elif in_half and weights[0].dtype == torch.float32:
        forms = [Float16StoredLinear, PrepackedLinear]
    for form in forms:
        with suppress(AttributeError, ImportError, RuntimeError):  # missing, or not for this weight
            made = form(weights, torch.cat(biases) if biases else None)
            made(torch.zeros(1, made.in_features, dtype=made.dtype))
            return made
    return None


def _plain_layer(module: nn.Module) -> _Layer | None:
    """A plain linear layer, or GPT-2's ``Conv1D``."""
    from transformers.pytorch_utils import Conv1D

    # FalconLinear is a Linear that rounds between product and bias; exact types leave out adapters.
    if type(module) is nn.Linear or type(module).__name__ == "FalconLinear":
        weight, bias = module.weight, module.bias
    elif type(module) is Conv1D:
        weight, bias = module.weight.t(), module.bias
    else:
        return None
    if not isinstance(weight, torch.Tensor) or weight.device.type != "cpu":
        return None
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    if type(weight) not in (torch.Tensor, nn.Parameter) and not is_int8(weight):
        return None  # an unknown kind of quantization
    return weight, bias if isinstance(bias, torch.Tensor) else None
