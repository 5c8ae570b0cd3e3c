"""Reads rotary embeddings off a recorded forward: the angles that attention was given, and a table
of them for all positions, by repeating the call that made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..parts import Rotary, UnsupportedLayersError
from .recording import ROWS, Call, same

# The rotary embeddings whose angles depend on the position alone, not on the batch's length.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_SINUSOIDS = "embed_positions"  # GPT-J's buffer, sines before cosines


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
    """``cos`` and ``sin`` (2, pairs): at the first position and at the furthest. ``step`` is how
    they lie in a table's rows: 1 where all angles come once or twice over, 2 where each is there
    twice in a row.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    in_pairs: bool
    step: int
    made_by: Call


class Rotations:
    """The rotary embeddings of a model whose call was recorded."""

    def __init__(self, root: Call, max_model_len: int) -> None:
        self._makers = [call for call in root.walk() if not call.inner and len(call.outputs) == 2]
        self._length = max_model_len
        self._tables: dict[tuple[int, int, bool], Rotary] = {}

    def of(self, attention: Call) -> list[Rotation]:
        """The rotations that the angles given to an attention may stand for."""
        made_by, angles = self._angles(attention)
        if made_by is None or angles is None:
            return []
        cos, sin = (part.reshape(-1, *part.shape[-2:])[:, 0] for part in angles)
        cos, sin = cos.expand(ROWS, -1), sin.expand(ROWS, -1)
        found = []
        for step in (1, 2):
            once = [_once(part, step) for part in (cos, sin)]
            if once[0] is not None and once[1] is not None:
                found += [
                    Rotation(once[0], once[1], pairs, step, made_by) for pairs in (False, True)
                ]
        return found

    def _angles(
        self, attention: Call
    ) -> tuple[Call | None, tuple[torch.Tensor, torch.Tensor] | None]:
        for given in (*attention.args, *attention.kwargs.values()):
            if isinstance(given, tuple) and len(given) == 2 and torch.is_tensor(given[0]):
                for call in self._makers:
                    if same(call.outputs[0], given[0]) and same(call.outputs[1], given[1]):
                        return call, given
        buffer = getattr(attention.module, _SINUSOIDS, None)
        if torch.is_tensor(buffer):
            sin, cos = buffer.to(attention.input.dtype).chunk(2, dim=-1)
            ends = [0, _positions(attention)]
            return attention, (cos[ends].unsqueeze(1), sin[ends].unsqueeze(1))
        return None, None

    def table(self, rotation: Rotation) -> Rotary:
        """For all positions. Raises UnsupportedLayersError where there is none."""
        has_buffer = hasattr(rotation.made_by.module, _SINUSOIDS)  # alike in all layers
        maker = 0 if has_buffer else id(rotation.made_by)
        key = maker, rotation.step, rotation.in_pairs
        if key not in self._tables:
            self._tables[key] = self._made_table(rotation)
        return self._tables[key]

    def _made_table(self, rotation: Rotation) -> Rotary:
        call = rotation.made_by
        buffer = getattr(call.module, _SINUSOIDS, None)
        if torch.is_tensor(buffer):
            sin, cos = buffer[: self._length].to(call.input.dtype).chunk(2, dim=-1)
        else:
            cos, sin = _angles_of_all(call, self._length)
        halves = [_once(part, rotation.step) for part in (cos, sin)]
        assert halves[0] is not None
        assert halves[1] is not None
        whole = [
            torch.cat([part, part], dim=-1).contiguous() for part in halves if part is not None
        ]
        return Rotary(whole[0], whole[1], rotation.in_pairs)

    def apply(self, rotation: Rotation, states: torch.Tensor) -> torch.Tensor:
        """states (rows, heads, tokens, dim) float32, rotated by the row's angles."""
        cos, sin = (part.float()[:, None, None] for part in (rotation.cos, rotation.sin))
        size = 2 * cos.shape[-1]
        turned, rest = states[..., :size], states[..., size:]
        if rotation.in_pairs:
            low, high = turned[..., ::2], turned[..., 1::2]
            both = torch.stack([low * cos - high * sin, high * cos + low * sin], dim=-1).flatten(-2)
        else:
            low, high = turned.chunk(2, dim=-1)
            both = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
        return torch.cat([both, rest], dim=-1)


def _once(angles: torch.Tensor, step: int) -> torch.Tensor | None:
    """angles (n, size): each once, where those are there twice."""
    if step == 2:
        first, second = angles[:, ::2], angles[:, 1::2]
        return first if first.shape == second.shape and torch.equal(first, second) else None
    half = angles.shape[-1] // 2
    return angles[:, :half] if torch.equal(angles[:, :half], angles[:, half:]) else angles


def _positions(call: Call) -> int:
    """The furthest position that a call was given."""
    return max(int(part.max()) for part in call.inputs if not part.is_floating_point())


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
