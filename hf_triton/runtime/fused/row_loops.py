"""Runs the compiled loops over rows: norms, gated activations, argmax. Knows no cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hf_triton.runtime.kernels import layout
from hf_triton.runtime.kernels.compiled_loops import ThreadTeam, bits_of, load_kernel

from .parts import Attention, Embedding, Layer, Linear, Mlp, Norm
from .reading.layers import ACTIVATIONS

# The loops that activate and multiply. What only activates, torch does in as little time.
_GATED: dict[object, str] = {"silu": "silu_mul", "gelu_tanh": "gelu_tanh_mul"}


class RowLoops:
    """Loops over rows of ``dtype``, on torch's threads. Kernels are loaded when first used."""

    def __init__(self, dtype: torch.dtype, team: ThreadTeam) -> None:
        self.dtype, self._team = dtype, team

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
        self._norm(norm, hidden, delta, out)
        return out

    def _norm(
        self, norm: Norm, x: torch.Tensor, delta: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """x and out (rows, size), or (rows, parts, size) whose rows may lie apart."""
        rows, *between, size = x.shape
        parts = between[0] if between else 1
        self._team.run(
            load_kernel("norm", self.dtype),
            *(rows, parts, size, x.stride(0)),
            *(x.data_ptr(), 0 if delta is None else delta.data_ptr()),
            *(norm.weight.data_ptr(), 0 if norm.bias is None else norm.bias.data_ptr()),
            *(out.data_ptr(), size if norm.weight.numel() > size else 0),
            *(int(norm.has_mean), bits_of(norm.eps), x.stride(1) if parts > 1 else 0),
            int(norm.is_wide),
            numbers=rows * parts * size if rows * parts > 1 else 0,
        )

    def placing(self, attention: Attention, kv_heads: int, dim: int) -> dict[int, int]:
        """The arguments of ``place`` that stay from step to step."""
        heads, rotary = attention.num_heads, attention.rotary
        width, groups = (heads + 2 * kv_heads) * dim, heads // kv_heads
        if attention.is_interleaved:  # each head of keys follows its queries, its values follow it
            steps, new = (width // kv_heads, width // kv_heads), (groups * dim, (groups + 1) * dim)
        else:
            steps, new = (groups * dim, dim), (heads * dim, (heads + kv_heads) * dim)
        found = {
            layout.HEADS: heads,
            layout.KV_HEADS: kv_heads,
            layout.DIM: dim,
            layout.TOKEN_STEP: width,
            layout.HEAD_STEP: steps[0],
            layout.KEY_STEP: steps[1],
            layout.NEW_KEYS: new[0],
            layout.NEW_VALUES: new[1],
        }
        if rotary is not None:
            found |= {layout.COS: rotary.cos.data_ptr(), layout.SIN: rotary.sin.data_ptr()}
            found |= {layout.ANGLES: rotary.cos.shape[1], layout.IN_PAIRS: rotary.in_pairs}
        q_norm, k_norm = attention.query_norm, attention.key_norm
        if q_norm is not None and k_norm is not None and not q_norm.is_wide:
            found |= {layout.Q_NORM: q_norm.weight.data_ptr(), layout.EPS: bits_of(q_norm.eps)}
            found[layout.K_NORM] = k_norm.weight.data_ptr()
        return found

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
            self._norm(norm, states, None, states)

    def rest(
        self, layer: Layer, hidden: torch.Tensor, x: torch.Tensor, delta: torch.Tensor
    ) -> torch.Tensor:
        """Returns the rest of a layer's addition to ``hidden``, after adding some itself; ``x`` is
        attention's input, ``delta`` its output, (tokens, hidden) each.
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
        up, activation = mlp.up(x), mlp.activation
        if mlp.is_gated and activation in _GATED:
            out = up.new_empty(len(up), up.shape[1] // 2)
            self._run(_GATED[activation], up, out.data_ptr())
            return mlp.down(out)
        activate = ACTIVATIONS[activation] if isinstance(activation, str) else activation
        if not mlp.is_gated:
            return mlp.down(activate(up))
        gates, rest = up.chunk(2, dim=-1)
        return mlp.down(activate(gates).mul_(rest))

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """logits (rows, vocab) -> the first of the largest in each row, (rows,) int64."""
        if logits.dtype != self.dtype or not logits.is_contiguous():
            return logits.argmax(dim=-1)
        out = torch.empty(len(logits), dtype=torch.int64)
        scratch = self._team.scratch(logits.shape[1])
        self._run("argmax", logits, out.data_ptr(), scratch.data_ptr())
        return out

    def _run(self, name: str, x: torch.Tensor, *arguments: int) -> None:
        """Runs a kernel over x (rows, size), whose rows are its tasks."""
        rows, size = x.shape
        numbers = rows * size if rows > 1 else 0
        kernel = load_kernel(name, self.dtype)
        self._team.run(kernel, rows, size, x.data_ptr(), *arguments, numbers=numbers)
