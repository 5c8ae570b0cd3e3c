"""Reads a layer's attention off its recorded call: what it is made of, tried on the queries, keys
and values that the model gave to its attention function.

A short trial run of whole models can't tell a layer without rotary embedding from one with it where
weights are small (SmolLM3 in bfloat16), nor see a scaling that starts at far positions (Ministral
3). So each layer's are compared by themselves, at the first position and at the furthest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hf_triton.runtime.devices.linear_layouts import PrepackedLinear
from hf_triton.runtime.devices.prepacked_linear import LinearPart

from ..parts import Attention, Linear, Norm, Rotary, UnsupportedLayersError
from .norms import read_norm, widened
from .recording import Attended, Call, same
from .rotary import Rotations

_TOLERANCE = 0.03  # of the largest number; rotating in bfloat16 rounds to less than 0.01
_SINKS = "s_aux"


def read_attention(call: Call, rotations: Rotations, join: Callable[..., Linear]) -> Attention:
    """Raises UnsupportedLayersError where it computes anything else than an Attention does."""
    (attended,) = call.attended
    sizes = _Sizes(attended)
    leaves = call.leaves()
    projections = [leaf for leaf in leaves if same(leaf.input, call.input)]
    lasts = [leaf for leaf in leaves if same(leaf.output, call.output)]
    if len(projections) not in (1, 3) or len(lasts) != 1:
        raise UnsupportedLayersError(f"{call.kind} is made of {', '.join(_names(call))}")
    raw = torch.cat([leaf.output.reshape(sizes.tokens, -1) for leaf in projections], -1)
    if raw.shape[1] != sizes.width:
        raise UnsupportedLayersError(f"{call.kind} gives {raw.shape[1]} numbers for its heads")
    is_interleaved, (query, key) = _split(raw, attended, sizes)
    norms = [leaf for leaf in leaves if leaf not in (*projections, *lasts)]
    query, query_norm = _normed(query, norms, sizes.heads, sizes.dim)
    key, key_norm = _normed(key, norms, sizes.kv_heads, sizes.dim)
    if norms:
        raise UnsupportedLayersError(f"{call.kind} is made of {', '.join(_names(call))}")
    rotary, factor = _rotation(call, attended, (query, key), rotations)
    return Attention(
        qkv=joined(join, [leaf.module for leaf in projections]),
        output=called(lasts[0].module),
        num_heads=sizes.heads,
        scale=(attended.given.get("scaling") or sizes.dim**-0.5) * factor,
        is_interleaved=is_interleaved,
        query_norm=query_norm,
        key_norm=key_norm,
        norms_whole=query_norm is not None and query_norm.weight.numel() != sizes.dim,
        rotary=rotary,
        window=attended.given.get("sliding_window") or 0,
        softcap=attended.given.get("softcap") or 0.0,
        sinks=_sinks(call, attended.given),
        is_causal=_is_causal(call, attended.given),
        bias=attended.given.get("bias"),
        relative_keys=attended.given.get("relative_keys"),
        relative_queries=attended.given.get("relative_queries"),
    )


class _Sizes:
    """Sizes of a recorded call's queries, keys and values."""

    def __init__(self, attended: Attended) -> None:
        rows, self.heads, num_tokens, self.dim = attended.query.shape
        self.tokens, self.kv_heads = rows * num_tokens, attended.key.shape[1]
        if attended.value.shape != attended.key.shape or attended.key.shape[-1] != self.dim:
            raise UnsupportedLayersError("its queries, keys and values differ in size")
        self.width = (self.heads + 2 * self.kv_heads) * self.dim


def _rows(states: torch.Tensor) -> torch.Tensor:
    """(rows, heads, tokens, dim) -> (rows * tokens, heads * dim)."""
    return states.transpose(1, 2).flatten(0, 1).flatten(1)


def _split(
    raw: torch.Tensor, attended: Attended, sizes: _Sizes
) -> tuple[bool, tuple[torch.Tensor, torch.Tensor]]:
    """Whether ``raw`` (tokens, width) is interleaved, and its queries and keys, (tokens, heads *
    dim) each.
    """
    value = _rows(attended.value)
    ends = [sizes.heads * sizes.dim, sizes.kv_heads * sizes.dim, sizes.kv_heads * sizes.dim]
    query, key, last = raw.split(ends, dim=-1)
    if same(last, value):
        return False, (query, key)
    groups = raw.view(sizes.tokens, sizes.kv_heads, -1, sizes.dim)
    if same(groups[:, :, -1], value):
        return True, (groups[:, :, :-2].flatten(1), groups[:, :, -2].flatten(1))
    raise UnsupportedLayersError("its values are not as one product gives them")


def _normed(
    states: torch.Tensor, norms: list[Call], heads: int, dim: int
) -> tuple[torch.Tensor, Norm | None]:
    """The states after the norm that was given them, which is taken off the list."""
    for call in norms:
        for given, made in _arrangements(call, heads, dim):
            if not same(given, states):
                continue
            norm = read_norm(call)
            if norm is None:
                raise UnsupportedLayersError(f"its {call.kind} is no norm")
            norms.remove(call)
            is_whole = norm.weight.numel() != dim
            return made.reshape(states.shape), widened(norm) if is_whole else norm
    return states, None


def _arrangements(call: Call, heads: int, dim: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What a call was given and made, token by token: heads may stand before tokens."""
    yield call.input, call.output
    if call.input.dim() == 4 and call.input.shape[1] == heads and call.input.shape[3] == dim:
        yield _rows(call.input), _rows(call.output)


def _rotation(
    call: Call,
    attended: Attended,
    states: tuple[torch.Tensor, torch.Tensor],
    rotations: Rotations,
) -> tuple[Rotary | None, float]:
    """What makes ``states`` the queries and keys of the attention function: a rotation or none, and
    a number that queries are multiplied by.
    """
    (query, key), heads = states, attended.query.shape[1]
    shapes = attended.query.shape, attended.key.shape
    fitting = [one for one in rotations.of(call) if 2 * one.cos.shape[1] <= shapes[0][-1]]
    for rotation in (None, *fitting):
        turned = [
            _turned(rotations, rotation, part, shape)
            for part, shape in zip((query, key), shapes, strict=True)
        ]
        for factor in (1.0, attended.query.shape[-1] ** -0.5):
            if _agree(turned[0] * factor, attended.query) and _agree(turned[1], attended.key):
                return (None if rotation is None else rotations.table(rotation)), factor
    raise UnsupportedLayersError(f"its queries or keys of {heads} heads are not only rotated")


def _turned(
    rotations: Rotations, rotation: Any, states: torch.Tensor, shape: torch.Size
) -> torch.Tensor:
    """states (tokens, heads * dim), rotated, (rows, heads, tokens, dim) float32."""
    rows, heads, tokens, dim = shape
    arranged = states.view(rows, tokens, heads, dim).transpose(1, 2).float()
    return arranged if rotation is None else rotations.apply(rotation, arranged)


def _agree(expected: torch.Tensor, got: torch.Tensor) -> bool:
    return bool((got.float() - expected).abs().max() <= _TOLERANCE * expected.abs().max())


def _sinks(call: Call, given: dict[str, Any]) -> torch.Tensor | None:
    sinks = given.get(_SINKS)
    own = [name for name, part in call.module.named_parameters(recurse=False) if part is not sinks]
    if own:
        raise UnsupportedLayersError(f"{call.kind} has weights of its own: {', '.join(own)}")
    return None if sinks is None else sinks.detach().float().contiguous()


def _is_causal(call: Call, given: dict[str, Any]) -> bool:
    """Decides it as transformers' own attention functions do."""
    causal = given.get("is_causal")
    return bool(getattr(call.module, "is_causal", False) if causal is None else causal)


def _names(call: Call) -> list[str]:
    return sorted({leaf.kind for leaf in call.leaves()})


def joined(join: Callable[..., Linear], parts: list[Any]) -> Linear:
    """Linear layers of one input as one."""
    if len(parts) == 1:
        return called(parts[0])
    return join(*parts)


def called(module: Any) -> Linear:
    """What calling a module computes; of a prepacked layer, into which nothing hooks, without the
    microseconds that nn.Module's own call takes.
    """
    linear: Linear = module.forward if isinstance(module, PrepackedLinear) else module
    return linear


def joined_by_prepacking(*parts: Any) -> Linear:
    """Linear layers of one input as one: prepacking's joint layer where there is one."""
    if all(isinstance(part, LinearPart) for part in parts):
        (first, *others) = (part.shared for part in parts)
        if all(shared is first for shared in others):
            return called(first.linear)
    return lambda x: torch.cat([part(x) for part in parts], dim=-1)
