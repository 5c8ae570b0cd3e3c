"""Runs the compiled loops over rows: norms, gated activations, argmax. Knows no cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_triton.runtime.kernels.kernel_loading import load_kernel
from hf_triton.runtime.kernels.thread_team import Kernel, ThreadTeam, bits_of

from .parts import Attention, Embedding, Layer, Linear, Mlp, Norm
from .reading.layers import ACTIVATIONS

MIN_PARALLEL_SIZE = 4096  # numbers; for fewer, starting the threads costs more than it saves
# The loops that activate and multiply. What only activates, torch does in as little time, in place:
# where the operating system has to give memory for the result, that takes as long.
_GATED = {"silu": "silu_mul", "gelu_tanh": "gelu_tanh_mul", "gelu": "gelu_mul"}
_IN_PLACE = {"gelu": "none", "gelu_tanh": "tanh"}


class RowLoops:
    """Loops over rows of ``dtype``, on torch's threads. Kernels are loaded when first used."""

    def __init__(self, dtype: torch.dtype, team: ThreadTeam) -> None:
        self.dtype, self._team = dtype, team
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            self._kernels[name] = load_kernel(name, str(self.dtype).removeprefix("torch."))
        return self._kernels[name]

    def embedded(
        self,
        embedding: Embedding,
        ids: torch.Tensor,
        positions: torch.Tensor,
        types: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(tokens,) int64 each; without ``types`` all are of the first -> (tokens, hidden)."""
        hidden = embedding.tokens(ids)
        if embedding.scale != 1:
            hidden.mul_(embedding.scale)
        if embedding.types is not None:
            kinds = embedding.types
            hidden.add_(kinds[0] if types is None else F.embedding(types, kinds))
        if embedding.positions is not None:
            hidden.add_(F.embedding(positions, embedding.positions))
        hidden = self.added(hidden, None, embedding.norm)
        return hidden if embedding.projection is None else embedding.projection(hidden)

    def added(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, norm: Norm | None
    ) -> torch.Tensor:
        """Adds ``delta`` to ``hidden`` in place -> its norm, or itself, (tokens, hidden)."""
        if norm is None:
            return hidden if delta is None else hidden.add_(delta)
        out = torch.empty_like(hidden)
        if norm.is_wide:
            self._wide(norm, hidden, delta, out)
            return out
        rows, size = hidden.shape
        self._team.run(
            self.kernel("norm"),
            *(rows, size, hidden.data_ptr(), 0 if delta is None else delta.data_ptr()),
            *(norm.weight.data_ptr(), out.data_ptr(), bits_of(norm.eps)),
            parallel=rows * size > MIN_PARALLEL_SIZE,
        )
        return out

    def _wide(
        self, norm: Norm, x: torch.Tensor, delta: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """x and out (rows, size), or (rows, parts, size) whose rows may lie apart."""
        rows, *between, size = x.shape
        parts = between[0] if between else 1
        self._team.run(
            self.kernel("wide_norm"),
            *(rows, parts, size, x.stride(0)),
            *(x.data_ptr(), 0 if delta is None else delta.data_ptr()),
            *(norm.weight.data_ptr(), 0 if norm.bias is None else norm.bias.data_ptr()),
            *(out.data_ptr(), size if norm.weight.numel() > size else 0),
            *(int(norm.has_mean), bits_of(norm.eps), x.stride(1) if parts > 1 else 0),
            parallel=rows * parts * size > MIN_PARALLEL_SIZE,
        )

    def placing(self, attention: Attention) -> tuple[Kernel, tuple[int, ...]]:
        """The loop that norms and rotates queries and keys, and those of its arguments that
        stay: from the rotary embedding's on.
        """
        name, rotary = "place", attention.rotary
        if rotary is not None:
            name += "_pairs" if rotary.in_pairs else ""
            name += "_wide" if rotary.cos.dtype != self.dtype else ""
        q_norm, k_norm = attention.query_norm, attention.key_norm
        if q_norm is None or k_norm is None or q_norm.is_wide:
            norms = (0, 0, 0)
        else:
            norms = (q_norm.weight.data_ptr(), k_norm.weight.data_ptr(), bits_of(q_norm.eps))
        return self.kernel(name), (
            *((rotary.cos.data_ptr(), rotary.sin.data_ptr()) if rotary else (0, 0)),
            *(rotary.cos.shape[1] if rotary else 0, *norms, int(attention.is_interleaved)),
        )

    def norm_heads(self, attention: Attention, qkv: torch.Tensor, dim: int) -> None:
        """Norms queries and keys of ``qkv`` (tokens, width) in place."""
        heads = attention.num_heads
        kv_heads = (qkv.shape[1] // dim - heads) // 2
        all_heads = qkv.unflatten(1, (-1, dim))
        if attention.is_interleaved:  # query, key and value of one head after another's
            parts = all_heads[:, ::3], all_heads[:, 1::3]
        else:
            parts = all_heads[:, :heads], all_heads[:, heads : heads + kv_heads]
        for norm, states in zip((attention.query_norm, attention.key_norm), parts, strict=True):
            assert norm is not None
            is_whole = attention.norms_whole and norm.weight.dim() == 1
            states = states.flatten(1) if is_whole else states
            self._wide(norm, states, None, states)

    def rest(
        self, layer: Layer, hidden: torch.Tensor, x: torch.Tensor, delta: torch.Tensor
    ) -> torch.Tensor:
        """What a layer adds to ``hidden`` beside what this adds itself; ``x`` is what attention was
        given, ``delta`` what it gave, (tokens, hidden) each.
        """
        delta = self._scaled(layer.scale, delta, layer.attention_post_norm)
        if not layer.is_parallel:
            x = self.added(hidden, delta, layer.mlp_norm)
        elif layer.mlp_norm is not layer.attention_norm:
            x = self.added(hidden, None, layer.mlp_norm)
        made = self._scaled(layer.scale, self.mlp(layer.mlp, x), layer.mlp_post_norm)
        return made.add_(delta) if layer.is_parallel else made

    def _scaled(self, scale: float, delta: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        if norm is not None:
            delta = self.added(delta, None, norm)
        return delta if scale == 1 else delta.mul_(scale)

    def mlp(self, mlp: Mlp | Linear, x: torch.Tensor) -> torch.Tensor:
        """x (tokens, hidden) -> the same shape."""
        if not isinstance(mlp, Mlp):
            return mlp(x)
        up = mlp.up(x)
        if mlp.activation is None:
            return mlp.down(up)
        if mlp.is_gated and isinstance(mlp.activation, str) and mlp.activation in _GATED:
            rows, size = up.shape[0], up.shape[1] // 2
            out = up.new_empty(rows, size)
            self._team.run(
                self.kernel(_GATED[mlp.activation]),
                *(rows, size, up.data_ptr(), out.data_ptr()),
                parallel=rows * size > MIN_PARALLEL_SIZE,
            )
            return mlp.down(out)
        if not mlp.is_gated and isinstance(mlp.activation, str) and mlp.activation in _IN_PLACE:
            kind = _IN_PLACE[mlp.activation]
            return mlp.down(torch.ops.aten.gelu_(up, approximate=kind))
        activate = (
            ACTIVATIONS[mlp.activation] if isinstance(mlp.activation, str) else mlp.activation
        )
        if not mlp.is_gated:
            return mlp.down(activate(up))
        gates, rest = up.chunk(2, dim=-1)
        return mlp.down(activate(gates) * rest)

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """logits (rows, vocab) -> the first of the largest in each row, (rows,) int64."""
        if logits.dtype != self.dtype or not logits.is_contiguous():
            return logits.argmax(dim=-1)
        rows, size = logits.shape
        out = torch.empty(rows, dtype=torch.int64)
        self._team.run(self.kernel("argmax"), rows, size, logits.data_ptr(), out.data_ptr())
        return out
