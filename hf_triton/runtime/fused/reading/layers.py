"""Reads a decoder layer off its recorded call: which norm was given what, and what was added up.

Goes by what modules computed, not by what they are called: a norm whose output attention was given
stands before attention, whatever its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from hf_triton.runtime.devices.linear_layouts import PrepackedLinear

from ..parts import Layer, Linear, Mlp, Norm, UnsupportedLayersError
from .attention import called, joined, read_attention
from .norms import read_norm
from .recording import Call, near, same
from .rotary import Rotations

Activation = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
_SCALE = "residual_multiplier"


def read_layer(call: Call, rotations: Rotations, join: Callable[..., Linear]) -> Layer:
    """Raises UnsupportedLayersError where it computes anything else than a Layer does."""
    last_leaf = call.leaves()[-1]
    if same(last_leaf.output, call.output) and read_norm(last_leaf) is not None:
        return _read_normed_sums(call, rotations, join)
    attentions = [inner for inner in call.inner if inner.attended]
    if len(attentions) != 1:
        raise UnsupportedLayersError(f"{call.kind} is made of {', '.join(_names(call))}")
    (attention,) = attentions
    others = [c for c in call.inner if c is not attention and not c.changes_nothing]
    norms = _Norms(others)
    scale = float(getattr(call.module, _SCALE, 1.0))
    attention_norm = norms.before(attention.input, call.input)
    added, attention_post_norm = norms.after(attention.output)
    mlp_calls = norms.take_mlp()
    given, made = mlp_calls[0].input, mlp_calls[-1].output
    between = _sum(call.input, added, scale)
    is_parallel = not norms.stands_between(given, between)
    mlp_norm = norms.before(given, call.input if is_parallel else between)
    last, mlp_post_norm = norms.after(made)
    if norms.unused or not near(_sum(between, last, scale), call.output):
        raise UnsupportedLayersError(f"{call.kind} is made of {', '.join(_names(call))}")
    return Layer(
        attention=read_attention(attention, rotations, join),
        mlp=_mlp(mlp_calls, join),
        attention_norm=attention_norm,
        mlp_norm=mlp_norm,
        attention_post_norm=attention_post_norm,
        mlp_post_norm=mlp_post_norm,
        is_parallel=is_parallel,
        scale=scale,
    )


def _read_normed_sums(call: Call, rotations: Rotations, join: Callable[..., Linear]) -> Layer:
    """A layer of BERT's kind, whose parts may lie in modules of any kind."""
    leaves = call.leaves()
    between = [
        number
        for number in range(1, len(leaves) - 1)
        if read_norm(leaves[number]) is not None
        and leaves[number].input.numel() == call.input.numel()
        and near(_sum(call.input, leaves[number - 1].output, 1), leaves[number].input)
    ]
    if len(between) != 1:
        raise UnsupportedLayersError(f"{call.kind} has {len(between) + 1} norms of sums")
    (middle,), last = between, leaves[-1]
    given, made = leaves[middle].output, leaves[-2].output
    mlp = _dense(leaves[middle + 1 : -1], given, made, join)
    if mlp is None or not near(_sum(given, made, 1), last.input):
        raise UnsupportedLayersError(f"{call.kind} is made of {', '.join(_names(call))}")
    (attending,) = [inner for inner in call.walk() if inner.attended]
    attention = replace(
        attending,
        inputs=[call.input],
        outputs=[leaves[middle - 1].output],
        inner=leaves[:middle],
    )
    return Layer(
        attention=read_attention(attention, rotations, join),
        mlp=mlp,
        attention_norm=read_norm(leaves[middle]),
        mlp_norm=read_norm(last),
        norms_sums=True,
    )


class _Norms:
    """A layer's norms, and its other calls."""

    def __init__(self, calls: list[Call]) -> None:
        self._all = [(call, norm) for call in calls if (norm := read_norm(call))]
        self._used: set[int] = set()
        norms = {id(call) for call, _ in self._all}
        self._others = [call for call in calls if id(call) not in norms]

    def before(self, given: torch.Tensor, hidden: torch.Tensor) -> Norm | None:
        """The norm that made ``given`` of ``hidden``; None where they are the same."""
        makers = [
            (id(call), norm)
            for call, norm in self._all
            if same(call.output, given) and same(call.input, hidden)
        ]
        if makers:
            # Two norms of one weight, as in models that were never trained: each stands once.
            number, norm = min(makers, key=lambda maker: maker[0] in self._used)
            self._used.add(number)
            return norm
        if not same(given, hidden):
            raise UnsupportedLayersError("a layer's part is not given its norm")
        return None

    def after(self, made: torch.Tensor) -> tuple[torch.Tensor, Norm | None]:
        """What the norm of ``made`` gives, and the norm, where there is one."""
        for call, norm in self._all:
            if same(call.input, made):
                self._used.add(id(call))
                return call.output, norm
        return made, None

    def stands_between(self, given: torch.Tensor, hidden: torch.Tensor) -> bool:
        """Whether ``given`` is ``hidden`` or a norm of it."""
        makers = [call.input for call, _ in self._all if same(call.output, given)]
        return any(same(made, hidden) for made in [given, *makers])

    def take_mlp(self) -> list[Call]:
        """What is no norm: a module, or the layer's own linear layers."""
        if not self._others:
            raise UnsupportedLayersError("a layer has no MLP")
        return self._others

    @property
    def unused(self) -> bool:
        return len(self._used) < len(self._all)


def _sum(hidden: torch.Tensor, delta: torch.Tensor, scale: float) -> torch.Tensor:
    delta = delta.view(hidden.shape)
    return hidden + (delta if scale == 1 else delta * scale)


def _names(call: Call) -> list[str]:
    return sorted({inner.kind for inner in call.inner})


def _mlp(calls: list[Call], join: Callable[..., Linear]) -> Mlp | Linear:
    """An Mlp, or the module as it is."""
    given, made = calls[0].input, calls[-1].output
    mlp = _dense([leaf for call in calls for leaf in call.leaves()], given, made, join)
    if mlp is not None:
        return mlp
    if len(calls) > 1:
        raise UnsupportedLayersError("a layer's own linear layers are no MLP")
    return _as_rows(calls[0].module)


def _as_rows(module: Any) -> Linear:
    """The module over (tokens, hidden): a mixture wants a batch of them."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = module(x.unsqueeze(0))
        rows: torch.Tensor = (y[0] if isinstance(y, tuple) else y).view(x.shape)
        return rows

    return forward


def _dense(
    leaves: list[Call], given: torch.Tensor, made: torch.Tensor, join: Callable[..., Linear]
) -> Mlp | None:
    firsts = [leaf for leaf in leaves if same(leaf.input, given) and _is_weighted(leaf)]
    acts = [leaf for leaf in leaves if not _is_weighted(leaf)]
    lasts = [leaf for leaf in leaves if same(leaf.output, made)]
    if len(acts) != 1 or len(lasts) != 1 or len(leaves) != len(firsts) + 2:
        return None
    (act,), (last,) = acts, lasts
    outputs = [first.output for first in firsts]
    modules = [first.module for first in firsts]
    activation: str | Linear | None = _activation(act)
    if len(firsts) == 2 and same(outputs[1], act.input):
        outputs, modules = outputs[::-1], modules[::-1]
    if len(firsts) == 1 and outputs[0].shape[-1] == 2 * last.input.shape[-1]:
        outputs = list(outputs[0].chunk(2, dim=-1))
    if not outputs or not same(outputs[0], act.input):
        return None
    is_gated = len(outputs) == 2
    if not same(act.output * outputs[1] if is_gated else act.output, last.input):
        return None
    up, down = joined(join, modules), called(last.module)
    if not is_gated and isinstance(activation, str) and isinstance(modules[0], PrepackedLinear):
        both = modules[0].followed_by(activation)
        up, activation = (up, activation) if both is None else (both, None)
    return Mlp(up, activation, down, is_gated)


def _is_weighted(call: Call) -> bool:
    """Whether it is a linear layer: those that are prepacked have no parameters."""
    return hasattr(call.module, "weight")


def _activation(call: Call) -> str | Linear:
    """Its name, where one computes the same; else the module."""
    x = torch.linspace(-6, 6, 97, device=call.input.device)
    x = torch.cat([x, 10 * x])  # some are clipped, ReLU6 and "gelu_10"
    for name, function in ACTIVATIONS.items():
        if torch.allclose(call.module(x), function(x), atol=1e-6):
            return name
    module: Linear = call.module
    return module
