"""Reads a layer's attention off its recorded call: what it is made of, tried on the queries, keys
and values that the model gave to its attention function; and a table of its rotary angles.

A short trial run of whole models can't tell a layer without rotary embedding from one with it where
weights are small (SmolLM3 in bfloat16), nor see a scaling that starts at far positions (Ministral
3). So each layer's are compared by themselves, at the first position and at the furthest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from hf_triton.runtime.devices.linear_layouts import PrepackedLinear
from hf_triton.runtime.devices.prepacked_linear import LinearPart

from ..parts import Attention, Linear, Norm, Rotary, UnsupportedLayersError
from .recording import ROWS, Attended, Call, read_norm, same

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


@dataclass(frozen=True)
class Rotation:
    """``cos`` and ``sin`` (ROWS, pairs): at the first position and at the furthest. ``step`` is how
    they lie in a table's rows: 1 where all angles come once or twice over, 2 where each is there
    twice in a row.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    in_pairs: bool
    step: int
    made_by: Call

    def apply(self, states: torch.Tensor) -> torch.Tensor:
        """states (rows, heads, tokens, dim) float32, rotated by the row's angles."""
        cos, sin = (part.float()[:, None, None] for part in (self.cos, self.sin))
        size = 2 * cos.shape[-1]
        turned, rest = states[..., :size], states[..., size:]
        if self.in_pairs:
            low, high = turned[..., ::2], turned[..., 1::2]
        else:
            low, high = turned.chunk(2, dim=-1)
        parts = [low * cos - high * sin, high * cos + low * sin]
        both = torch.stack(parts, dim=-1).flatten(-2) if self.in_pairs else torch.cat(parts, dim=-1)
        return torch.cat([both, rest], dim=-1)


class Rotations:
    """The rotary embeddings of a model whose call was recorded."""

    def __init__(self, root: Call, max_model_len: int) -> None:
        self._makers = [call for call in root.walk() if not call.inner and len(call.outputs) == 2]
        self._length = max_model_len
        self._tables: dict[tuple[int, int, bool], Rotary] = {}

    def of(self, attention: Call) -> list[Rotation]:
        """The rotations that the angles given to an attention may stand for."""
        angles = self._angles(attention)
        if angles is None:
            return []
        made_by, *parts = angles
        cos, sin = (p.reshape(-1, *p.shape[-2:])[:, 0].expand(ROWS, -1) for p in parts)
        found = []
        for step in (1, 2):
            once = [part for part in (_once(cos, step), _once(sin, step)) if part is not None]
            if len(once) == 2:
                found += [
                    Rotation(once[0], once[1], pairs, step, made_by) for pairs in (False, True)
                ]
        return found

    def _angles(self, attention: Call) -> tuple[Call, torch.Tensor, torch.Tensor] | None:
        """The call that made the angles of an attention, and their cosines and sines."""
        for given in (*attention.args, *attention.kwargs.values()):
            if isinstance(given, tuple) and len(given) == 2 and torch.is_tensor(given[0]):
                for call in self._makers:
                    if same(call.outputs[0], given[0]) and same(call.outputs[1], given[1]):
                        return call, *given
        buffer = getattr(attention.module, _SINUSOIDS, None)
        if not torch.is_tensor(buffer):
            return None
        sin, cos = buffer.to(attention.input.dtype).chunk(2, dim=-1)
        furthest = max(int(p.max()) for p in attention.inputs if not p.is_floating_point())
        ends = [0, furthest]
        return attention, cos[ends].unsqueeze(1), sin[ends].unsqueeze(1)

    def table(self, rotation: Rotation) -> Rotary:
        """The angles of all positions. Raises UnsupportedLayersError where there are none."""
        call = rotation.made_by
        buffer = getattr(call.module, _SINUSOIDS, None)
        maker = id(call) if buffer is None else 0  # a buffer is alike in all layers
        key = maker, rotation.step, rotation.in_pairs
        if key not in self._tables:
            if torch.is_tensor(buffer):
                sin, cos = buffer[: self._length].to(call.input.dtype).chunk(2, dim=-1)
            else:
                cos, sin = _angles_of_all(call, self._length)
            halves = [_once(part, rotation.step) for part in (cos, sin)]
            cos, sin = (torch.cat([half] * 2, dim=-1) for half in halves if half is not None)
            self._tables[key] = Rotary(cos.contiguous(), sin.contiguous(), rotation.in_pairs)
        return self._tables[key]


def _once(angles: torch.Tensor, step: int) -> torch.Tensor | None:
    """angles (n, size): each once, where those are there twice."""
    if step == 2:
        first, second = angles[:, ::2], angles[:, 1::2]
        return first if first.shape == second.shape and torch.equal(first, second) else None
    half = angles.shape[-1] // 2
    return angles[:, :half] if torch.equal(angles[:, :half], angles[:, half:]) else angles


def _angles_of_all(call: Call, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(length, size) each: the call once more, with all positions."""
    kinds = getattr(call.module, "rope_type", None)
    for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
        if kind not in _ROPE_TYPES:
            raise UnsupportedLayersError(f"its rotary embedding is of the type {kind}")
    positions = torch.arange(length, device=call.input.device).unsqueeze(0)

    def again(given: Any) -> Any:
        is_positions = torch.is_tensor(given) and not given.is_floating_point()
        return positions if is_positions else given

    cos, sin = call.module(
        *map(again, call.args), **{name: again(given) for name, given in call.kwargs.items()}
    )
    return cos[0], sin[0]


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
        norms_whole=query_norm is not None and query_norm.weight.numel() != dim,
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
    """Whether ``raw`` is interleaved; queries and keys, (tokens, heads * dim) each."""
    (_, heads, _, dim), kv_heads = attended.query.shape, attended.key.shape[1]
    value = _rows(attended.value)
    query, key, last = raw.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    if same(last, value):
        return False, query, key
    groups = raw.view(len(raw), kv_heads, -1, dim)
    if same(groups[:, :, -1], value):
        return True, groups[:, :, :-2].flatten(1), groups[:, :, -2].flatten(1)
    raise UnsupportedLayersError("its values are not as one product gives them")


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
                    raise UnsupportedLayersError(f"its {call.kind} is no norm")
                norms.remove(call)
                if norm.weight.numel() != dim:
                    norm = replace(norm, weight=norm.weight.float(), is_wide=True)
                return made.reshape(states.shape), norm
    return states, None


def _rotation(
    call: Call, attended: Attended, states: tuple[torch.Tensor, torch.Tensor], rotations: Rotations
) -> tuple[Rotary | None, float]:
    """What makes ``states`` the queries and keys of the attention function: a rotation or none, and
    a number that queries are multiplied by.
    """
    dim = attended.query.shape[-1]
    fitting = [found for found in rotations.of(call) if 2 * found.cos.shape[1] <= dim]
    for rotation in (None, *fitting):
        query, key = (
            _turned(rotation, part, whole.shape)
            for part, whole in zip(states, (attended.query, attended.key), strict=True)
        )
        for factor in (1.0, dim**-0.5):
            if _agree(query * factor, attended.query) and _agree(key, attended.key):
                return (None if rotation is None else rotations.table(rotation)), factor
    heads = attended.query.shape[1]
    raise UnsupportedLayersError(f"its queries or keys of {heads} heads are not only rotated")


def _turned(rotation: Rotation | None, states: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """states (tokens, heads * dim), rotated, (rows, heads, tokens, dim) float32."""
    rows, heads, tokens, dim = shape
    arranged = states.view(rows, tokens, heads, dim).transpose(1, 2).float()
    return arranged if rotation is None else rotation.apply(arranged)


def _agree(expected: torch.Tensor, got: torch.Tensor) -> bool:
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
