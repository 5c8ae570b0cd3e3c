"""A window's tokens to segments, and how far the window got. No torch.

As WhisperForConditionalGeneration._retrieve_segment, which follows section 3.8 of
https://arxiv.org/abs/2212.04356.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..transcript import Segment

TIME_STEP_S = 0.02  # between one timestamp token and the next
FRAME_S = 0.01  # between one frame of features and the next
_FRAMES_A_STEP = 2


@dataclass(frozen=True)
class Split:
    """``num_frames`` are those that the next window leaves out."""

    segments: list[Segment]
    num_frames: int


def complete_segments(token_ids: list[int], begin: int, offset_s: float) -> list[Segment]:
    """Those that end within the tokens so far: where one time follows another. ``begin`` is the
    token of time 0, ``offset_s`` the window's own time.
    """
    return [_timed(part, begin, offset_s) for part in _parts(token_ids, _ends(token_ids, begin))]


def split(token_ids: list[int], begin: int, offset_s: float, num_frames: int) -> Split:
    """The segments of a finished window of ``num_frames``, without its end of text."""
    ends = _ends(token_ids, begin)
    if not ends:
        last_s = offset_s + _last_time(token_ids, begin, num_frames) * TIME_STEP_S
        return Split([Segment(offset_s, last_s, token_ids)], num_frames)
    is_time = [token_id >= begin for token_id in token_ids]
    if is_time[-2:] == [False, True]:  # no speech after the last time
        parts = _parts(token_ids, [*ends, len(token_ids)])
        return Split([_timed(part, begin, offset_s) for part in parts], num_frames)
    # What follows the last whole segment is cut off in the middle: the next window reads it again.
    segments = complete_segments(token_ids, begin, offset_s)
    last = token_ids[ends[-1] - 1] - begin
    return Split(segments, last * _FRAMES_A_STEP or num_frames)


def _ends(token_ids: list[int], begin: int) -> list[int]:
    pairs = pairwise(token_ids)
    return [n for n, (a, b) in enumerate(pairs, start=1) if a >= begin and b >= begin]


def _parts(token_ids: list[int], ends: list[int]) -> list[list[int]]:
    starts = [0, *ends]
    return [token_ids[a:b] for a, b in zip(starts, ends, strict=False)]


def _timed(part: list[int], begin: int, offset_s: float) -> Segment:
    start, end = ((token_id - begin) * TIME_STEP_S for token_id in (part[0], part[-1]))
    return Segment(offset_s + start, offset_s + end, part)


def _last_time(token_ids: list[int], begin: int, num_frames: int) -> int:
    """In steps: the last time that was written and is not 0, else the window's end."""
    last = next((token_id for token_id in reversed(token_ids) if token_id >= begin), begin)
    return last - begin or num_frames // _FRAMES_A_STEP
