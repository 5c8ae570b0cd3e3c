"""Linear layers of a CPU model with prepacked weights.

``F.linear`` in float32 calls a general matrix product that packs the weight at every call. Two
layouts pack it once:

- oneDNN's: about half the time on processors with AVX-512 (less is saved in bfloat16);
- FBGEMM's, for float32: the weight is stored in float16 and computed in float32, where every value
  of it is a float16 exactly. Half of oneDNN's time for one row, the same for 32 to 256.

Layers that share their input (query, key and value; gate and up) become one: fewer starts of the
thread team, which take 10 % of a step where a weight is read for a single row.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from .linear_layouts import Float16StoredLinear, Int8Linear, PrepackedLinear, is_int8

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
        linear = packed(group, in_half) if len(group) == len(names) else None
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


def packed(layers: list[_Layer], in_half: bool) -> PrepackedLinear | None:
    """One layer with the outputs of all, in order; None where torch can't lay the weights out."""
    kinds = {(w.shape[1], w.dtype, bias is not None, is_int8(w)) for w, bias in layers}
    if len(kinds) > 1:
        return None
    weights = [weight.detach() for weight, _ in layers]
    biases = [bias for _, bias in layers if bias is not None]
    forms: list[type[PrepackedLinear]] = [PrepackedLinear]
    if is_int8(weights[0]):
        forms = [Int8Linear]
    elif in_half and weights[0].dtype == torch.float32:
        forms = [Float16StoredLinear, PrepackedLinear]
    for form in forms:
        with suppress(AttributeError, ImportError, RuntimeError):  # missing, or not for this weight
            weight = form.joined(weights)
            made = form(weight, torch.cat(biases) if biases else None)
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
