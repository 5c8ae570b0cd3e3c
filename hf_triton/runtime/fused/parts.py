"""The parts of a model's layers, as the fused runners compute them: one description for all
families. The folder reading finds them in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Linear = Callable[[torch.Tensor], torch.Tensor]


class UnsupportedLayersError(Exception):
    """The fused runners do not support this model; the text says why."""


@dataclass(frozen=True)
class Norm:
    """``weight * x / rms(x) + bias``, in float32, as weight and bias are; the quotient is rounded
    to the model's dtype, as Llama's is, unless the norm ``is_wide``. ``has_mean`` says whether the
    mean is taken off first, as LayerNorm does.
    """

    weight: torch.Tensor
    eps: float
    bias: torch.Tensor | None = None
    has_mean: bool = False
    is_wide: bool = False


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding, https://arxiv.org/abs/2104.09864: ``cos`` and ``sin`` are
    (max_model_len, rotary dim / 2) float32. Numbers are rotated with those half the rotary dim
    away, or ``in_pairs`` with their neighbours (GPT-J).
    """

    cos: torch.Tensor
    sin: torch.Tensor
    in_pairs: bool = False


@dataclass(frozen=True)
class Attention:
    """``qkv``: (tokens, hidden) -> (tokens, (heads + 2 kv_heads) * dim): all queries, all keys, all
    values; or ``is_interleaved``, for each head of keys its queries, the key and the value.

    Head norms are of ``dim`` numbers, of all heads' numbers, or of weights (heads * dim) that norm
    each head by its own. ``window`` and ``softcap`` are 0 without, ``sinks`` (heads,) float32.
    Where it ``is_causal`` a token looks at those before it alone, else at all of its text, or at
    those less than ``window`` away. ``bias`` (heads, 2 * n - 1) float32 is added to the scores, by
    distance: from the key n - 1 before its query to the one n - 1 behind it. To DeBERTa's
    scores are added, times ``scale``, the query's product with a column of ``relative_keys``, n +
    the key's position less the query's; and the key's with a column of ``relative_queries``, n +
    the query's position less the key's. Both are (heads, dim, 2 * n + 1), in the model's dtype.
    """

    qkv: Linear
    output: Linear
    num_heads: int
    scale: float
    is_interleaved: bool = False
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norms_whole: bool = False
    rotary: Rotary | None = None
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    is_causal: bool = True
    bias: torch.Tensor | None = None
    relative_keys: torch.Tensor | None = None
    relative_queries: torch.Tensor | None = None


@dataclass(frozen=True)
class Mlp:
    """``down(activation(up(x)))``; or gated, ``up`` giving gates first, then what they weigh:
    ``down(activation(gates) * rest)``. ``activation`` is the name of one in ``ACTIVATIONS``, or a
    module.
    """

    up: Linear
    activation: str | Linear
    down: Linear
    is_gated: bool


@dataclass(frozen=True)
class Layer:
    """One layer; a norm that is None is not there.

    h += scale * attention_post_norm(attention(attention_norm(h)))
    h += scale * mlp_post_norm(mlp(mlp_norm(h)))

    A parallel layer adds both to the ``h`` that both are computed from; they may have one norm.
    ``mlp`` may be a module of the model: a mixture of experts. BERT's layer ``norms_sums``:

    h = attention_norm(h + attention(h))
    h = mlp_norm(h + mlp(h))
    """

    attention: Attention
    mlp: Mlp | Linear
    attention_norm: Norm | None
    mlp_norm: Norm | None
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None
    is_parallel: bool = False
    norms_sums: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Embedding:
    """``projection(norm(scale * tokens(ids) + positions[i] + types[type]))``; what is None is not
    there. ``positions`` are (furthest position + 1 or more, size), ``types`` (kinds of tokens,
    size).
    """

    tokens: Linear
    positions: torch.Tensor | None = None
    types: torch.Tensor | None = None
    norm: Norm | None = None
    projection: Linear | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Body:
    """A model from its embedding to the ``norm`` of its last layer's output."""

    embedding: Embedding
    layers: list[Layer]
    norm: Norm | None


_ROWS = 2


def check_body(body: Body, sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Checks every layer against the others; ``sizes``: heads of keys, numbers in a head, the
    longest sequence. Raises UnsupportedLayersError.
    """
    embedding = body.embedding
    hidden = _rows_of(embedding.tokens, torch.zeros(_ROWS, dtype=torch.int64), dtype)
    for table in (embedding.positions, embedding.types):
        if table is not None and (table.dtype != dtype or table.shape[1] != hidden.shape[1]):
            raise UnsupportedLayersError(f"an embedding {tuple(table.shape)} in {table.dtype}")
    _check_norms(hidden.shape[1], embedding.norm)
    if embedding.projection is not None:
        hidden = _rows_of(embedding.projection, hidden, dtype)
    size = hidden.shape[1]
    _check_norms(size, body.norm)
    for layer in body.layers:
        _check_attention(layer.attention, hidden, sizes)
        _check_norms(size, layer.attention_norm, layer.attention_post_norm)
        _check_norms(size, layer.mlp_norm, layer.mlp_post_norm)
        if isinstance(layer.mlp, Mlp):
            inner = _rows_of(layer.mlp.up, hidden, dtype).shape[1] // (1 + layer.mlp.is_gated)
            _rows_of(layer.mlp.down, hidden.new_zeros(_ROWS, inner), dtype, size)
        else:
            _rows_of(layer.mlp, hidden, dtype, size)


def _check_attention(
    attention: Attention, hidden: torch.Tensor, sizes: tuple[int, int, int]
) -> None:
    kv_heads, dim, length = sizes
    heads, dtype, rotary = attention.num_heads, hidden.dtype, attention.rotary
    if heads % kv_heads:
        raise UnsupportedLayersError(f"it has {heads} heads for {kv_heads} of keys")
    _rows_of(attention.qkv, hidden, dtype, (heads + 2 * kv_heads) * dim)
    _rows_of(attention.output, hidden.new_zeros(_ROWS, heads * dim), dtype, hidden.shape[1])
    if rotary is not None and (2 * rotary.cos.shape[1] > dim or len(rotary.cos) != length):
        raise UnsupportedLayersError(f"its rotary embedding has shape {tuple(rotary.cos.shape)}")
    if attention.sinks is not None and attention.sinks.shape != (heads,):
        raise UnsupportedLayersError(f"its sinks have shape {tuple(attention.sinks.shape)}")
    for norm, count in ((attention.query_norm, heads), (attention.key_norm, kv_heads)):
        _check_norms(count * dim if attention.norms_whole else dim, norm)


def _check_norms(size: int, *norms: Norm | None) -> None:
    for norm in norms:
        if norm is not None and norm.weight.numel() != size:
            shape = tuple(norm.weight.shape)
            raise UnsupportedLayersError(f"a norm of {shape} for {size} numbers")


def _rows_of(
    part: Linear, x: torch.Tensor, dtype: torch.dtype, size: int | None = None
) -> torch.Tensor:
    """Applies ``part`` to ``x``; returns contiguous rows of ``size`` numbers."""
    y = part(x)
    if y.dim() != 2 or len(y) != len(x) or (size is not None and y.shape[1] != size):
        raise UnsupportedLayersError(f"a linear layer gives {tuple(y.shape)}, not rows of {size}")
    if y.dtype != dtype or not y.is_contiguous():
        raise UnsupportedLayersError(f"a linear layer gives {y.dtype}, strided {y.stride()}")
    return y
