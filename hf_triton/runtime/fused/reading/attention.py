"""Reads a layer's attention off its recorded call: what it is made of, tried on the queries, keys
and values that the model gave to its attention function; and a table of its rotary angles.

A short trial run of whole models can't tell a layer without rotary embedding from one with it where
weights are small (SmolLM3 in bfloat16), nor see a scaling that starts at far positions (Ministral
3). So each layer's are compared by themselves, at the first position and at the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from hf_triton.runtime.devices.prepacked_linear import LinearPart, PrepackedLinear

from ..parts import Attention, Linear, Norm, Rotary, UnsupportedLayersError
from .recording import Attended, Call, read_norm, same

# The rotary embeddings whose angles depend on the position alone, not on the batch's length.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_SINUSOIDS = "embed_positions"  # GPT-J's buffer, sines before cosines
_SINKS = "s_aux"
_TOLERANCE = 0.03  # of the largest number; rotating in bfloat16 rounds to less than 0.01


def stable_length(config: Any) -> int | None:
    """The most tokens before a longest sequence changes the rotary embedding of its whole batch
    (LongRoPE, https://arxiv.org/abs/2402.13753, as transformers computes it); None without that.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else rope.values()  # one for each kind of layer
    lengths = [
        kind.get("original_max_position_embeddings")
        for kind in kinds
        if isinstance(kind, dict) and kind.get("rope_type") == "longrope"
    ]
    return min((length for length in lengths if isinstance(length, int)), default=None)


class Rotations:
    """The rotary embeddings of a model whose call was recorded, at ``length`` positions from the
    ``first`` on.
    """

    def __init__(self, root: Call, first: int, length: int) -> None:
        self._makers = [call for call in root.walk() if not call.inner and len(call.outputs) == 2]
        self._positions = torch.arange(first, first + length).unsqueeze(0)
        self._tables: dict[int, list[Rotary]] = {}

    def of(self, attention: Call) -> Iterator[Rotary]:
        """Yields the embeddings that the angles given to an attention may stand for. Raises
        UnsupportedLayersError where angles of all positions can't be made alike.
        """
        buffer = getattr(attention.module, _SINUSOIDS, None)
        if torch.is_tensor(buffer):  # alike in all layers
            if 0 not in self._tables:
                sin, cos = buffer[self._positions[0]].to(attention.input.dtype).chunk(2, dim=-1)
                self._tables[0] = list(_readings(cos, sin))
            yield from self._tables[0]
        for given in (*attention.args, *attention.kwargs.values()):
            if isinstance(given, tuple) and len(given) == 2 and torch.is_tensor(given[0]):
                for call in self._makers:
                    if same(call.outputs[0], given[0]) and same(call.outputs[1], given[1]):
                        if id(call) not in self._tables:
                            self._tables[id(call)] = list(_readings(*self._angles(call)))
                        yield from self._tables[id(call)]
                        return

    def _angles(self, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
        """(positions, size) each: the call once more, with all positions."""
        kinds = getattr(call.module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
            if kind not in _ROPE_TYPES:
                raise UnsupportedLayersError(f"its rotary embedding is of the type {kind}")
        positions = self._positions.to(call.input.device)

        def again(given: Any) -> Any:
            is_positions = torch.is_tensor(given) and not given.is_floating_point()
            return positions if is_positions else given

        cos, sin = call.module(
            *map(again, call.args), **{name: again(given) for name, given in call.kwargs.items()}
        )
        return cos[0], sin[0]


def _readings(*angles: torch.Tensor) -> Iterator[Rotary]:
    """Cosines and sines (positions, size) may have each angle once, twice over or twice in a row,
    for numbers half a head away or for neighbours.
    """
    for step in (1, 2):
        found = [part for part in (_distinct(angle, step) for angle in angles) if part is not None]
        if len(found) == 2 and found[0].shape == found[1].shape:
            cos, sin = (part.float().contiguous() for part in found)
            yield from (Rotary(cos, sin, in_pairs) for in_pairs in (False, True))


def _distinct(angles: torch.Tensor, step: int) -> torch.Tensor | None:
    """angles (n, size): each once, where those are there twice."""
    if step == 2:
        first, second = angles[:, ::2], angles[:, 1::2]
        return first if first.shape == second.shape and torch.equal(first, second) else None
    half = angles.shape[-1] // 2
    return angles[:, :half] if torch.equal(angles[:, :half], angles[:, half:]) else angles


def read_attention(call: Call, rotations: Rotations, join: Callable[..., Linear]) -> Attention:
    """Raises UnsupportedLayersError where it computes anything else than an Attention does."""
    (attended,) = call.attended
    given = attended.given
    rows, heads, num_tokens, dim = attended.query.shape
    kv_heads = attended.key.shape[1]
    if attended.value.shape != attended.key.shape or attended.key.shape[-1] != dim:
        raise UnsupportedLayersError("its queries, keys and values differ in size")
    leaves = call.leaves()
    projections = [leaf for leaf in leaves if same(leaf.input, call.input)]
    lasts = [leaf for leaf in leaves if same(leaf.output, call.output)]
    if len(projections) not in (1, 3) or len(lasts) != 1:
        raise call.unsupported()
    raw = torch.cat([leaf.output.reshape(rows * num_tokens, -1) for leaf in projections], -1)
    if raw.shape[1] != (heads + 2 * kv_heads) * dim:
        raise UnsupportedLayersError(f"{call.kind} gives {raw.shape[1]} numbers for its heads")
    is_interleaved, query, key = _split(raw, attended)
    norms = [leaf for leaf in leaves if leaf not in (*projections, *lasts)]
    query, query_norm = _normed(query, norms, heads, dim)
    key, key_norm = _normed(key, norms, kv_heads, dim)
    if norms:
        raise call.unsupported()
    norms_whole = query_norm is not None and query_norm.weight.numel() != dim
    _check_head_norms(query_norm, key_norm, is_interleaved and (norms_whole or heads != kv_heads))
    rotary, factor = _rotation(call, attended, (query, key), rotations)
    is_causal = given.get("is_causal")  # decided as transformers' own attention functions do
    return Attention(
        qkv=joined(join, [leaf.module for leaf in projections]),
        output=called(lasts[0].module),
        num_heads=heads,
        scale=(given.get("scaling") or dim**-0.5) * factor,
        is_interleaved=is_interleaved,
        query_norm=query_norm,
        key_norm=key_norm,
        norms_whole=norms_whole,
        rotary=rotary,
        window=given.get("sliding_window") or 0,
        softcap=given.get("softcap") or 0.0,
        sinks=_sinks(call, given),
        is_causal=bool(
            getattr(call.module, "is_causal", False) if is_causal is None else is_causal
        ),
        bias=given.get("bias"),
        relative_keys=given.get("relative_keys"),
        relative_queries=given.get("relative_queries"),
    )


def _rows(states: torch.Tensor) -> torch.Tensor:
    """(rows, heads, tokens, dim) -> (rows * tokens, heads * dim)."""
    return states.transpose(1, 2).flatten(0, 1).flatten(1)


def _split(raw: torch.Tensor, attended: Attended) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Tells if ``raw`` is interleaved; and its queries and keys, (tokens, heads * dim) each."""
    (_, heads, _, dim), kv_heads = attended.query.shape, attended.key.shape[1]
    value = _rows(attended.value)
    query, key, last = raw.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    if same(last, value):
        return False, query, key
    groups = raw.view(len(raw), kv_heads, -1, dim)
    if same(groups[:, :, -1], value):
        return True, groups[:, :, :-2].flatten(1), groups[:, :, -2].flatten(1)
    raise UnsupportedLayersError("its projection of queries, keys and values has another layout")


def _normed(
    states: torch.Tensor, norms: list[Call], heads: int, dim: int
) -> tuple[torch.Tensor, Norm | None]:
    """The states after the norm that was given them, which is taken off the list."""
    for call in norms:
        arrangements = [(call.input, call.output)]
        if call.input.dim() == 4 and call.input.shape[1] == heads and call.input.shape[3] == dim:
            arrangements.append((_rows(call.input), _rows(call.output)))  # heads before tokens
        for given, made in arrangements:
            if same(given, states):
                norm = read_norm(call)
                if norm is None:
                    raise UnsupportedLayersError(f"its {call.kind} is not a norm")
                norms.remove(call)
                if norm.weight.numel() != dim:
                    norm = replace(norm, is_wide=True)
                return made.reshape(states.shape), norm
    return states, None


def _check_head_norms(query: Norm | None, key: Norm | None, lie_apart: bool) -> None:
    """Raises UnsupportedLayersError where one loop can't norm the heads of both."""
    if query is None or key is None:
        if query is not key:
            raise UnsupportedLayersError("it normalizes queries or keys, not both")
    elif query.is_wide != key.is_wide:
        raise UnsupportedLayersError("it normalizes queries and keys in different ways")
    elif query.is_wide and lie_apart:
        raise UnsupportedLayersError("it normalizes heads that do not lie side by side")


def _rotation(
    call: Call, attended: Attended, states: tuple[torch.Tensor, torch.Tensor], rotations: Rotations
) -> tuple[Rotary | None, float]:
    """Finds the rotation, or none, and the factor of queries that make ``states`` the queries and
    keys of the attention function.
    """
    heads, dim = attended.query.shape[1], attended.query.shape[-1]
    for rotary in chain([None], rotations.of(call)):
        if rotary is not None and 2 * rotary.cos.shape[1] > dim:
            continue
        query, key = (
            _turned(rotary, part, whole.shape)
            for part, whole in zip(states, (attended.query, attended.key), strict=True)
        )
        for factor in (1.0, dim**-0.5):
            if _is_near(query * factor, attended.query) and _is_near(key, attended.key):
                return rotary, factor
    raise UnsupportedLayersError(f"more than rotation changes its queries or keys ({heads} heads)")


def _turned(rotary: Rotary | None, states: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """states (tokens, heads * dim), those of each row turned by its position, (rows, heads, tokens,
    dim) float32.
    """
    rows, heads, tokens, dim = shape
    arranged = states.view(rows, tokens, heads, dim).transpose(1, 2).float()
    if rotary is None:
        return arranged
    size = 2 * rotary.cos.shape[1]
    cos, sin = (part[[0, -1]][:, None, None] for part in (rotary.cos, rotary.sin))
    turned, rest = arranged[..., :size], arranged[..., size:]
    if rotary.in_pairs:
        low, high = turned[..., ::2], turned[..., 1::2]
    else:
        low, high = turned.chunk(2, dim=-1)
    parts = [low * cos - high * sin, high * cos + low * sin]
    both = torch.stack(parts, dim=-1).flatten(-2) if rotary.in_pairs else torch.cat(parts, dim=-1)
    return torch.cat([both, rest], dim=-1)


def _is_near(expected: torch.Tensor, got: torch.Tensor) -> bool:
    return bool((got.float() - expected).abs().max() <= _TOLERANCE * expected.abs().max())


def _sinks(call: Call, given: dict[str, Any]) -> torch.Tensor | None:
    sinks = given.get(_SINKS)
    own = [name for name, part in call.module.named_parameters(recurse=False) if part is not sinks]
    if own:
        raise UnsupportedLayersError(f"{call.kind} has weights of its own: {', '.join(own)}")
    return None if sinks is None else sinks.detach().float().contiguous()


def joined(join: Callable[..., Linear], parts: list[Any]) -> Linear:
    return called(parts[0]) if len(parts) == 1 else join(*parts)


def called(module: Any) -> Linear:
    """A function that calls the module; a prepacked layer, into which nothing hooks, without the
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
