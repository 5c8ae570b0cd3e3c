"""What Whisper's decoder may write next: no suppressed token, and timestamps in pairs.

The rules are those of transformers' SuppressTokensLogitsProcessor,
SuppressTokensAtBeginLogitsProcessor and WhisperTimeStampLogitsProcessor, which follow
https://github.com/openai/whisper/blob/main/whisper/decoding.py (ApplyTimestampRules).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from .tokens import WhisperTokens

_NEVER = float("-inf")


@dataclass(frozen=True)
class WhisperRule:
    """``forced`` are the first tokens of the output, each one of several."""

    tokens: WhisperTokens
    forced: tuple[tuple[int, ...], ...] = ()
    timestamps: bool = False

    def restrict(self, logits: Any, token_ids: Sequence[int]) -> None:
        """Changes float32 logits (vocab,) in place; ``token_ids`` is the output so far."""
        step = len(token_ids)
        if step < len(self.forced):
            _only(logits, self.forced[step])
            return
        own = token_ids[len(self.forced) :]
        _forbid(logits, self.tokens.suppressed)
        if not own:
            _forbid(logits, self.tokens.suppressed_at_first)
        if self.timestamps:
            self._restrict_times(logits, own)

    def _restrict_times(self, logits: torch.Tensor, own: Sequence[int]) -> None:
        begin, text = self.tokens.timestamp_begin, logits[: self.tokens.timestamp_begin]
        times = logits[begin:]
        text[begin - 1] = _NEVER  # <|notimestamps|>
        last_is_time = bool(own) and own[-1] >= begin
        one_before_is_time = len(own) < 2 or own[-2] >= begin
        if last_is_time and one_before_is_time:
            times.fill_(_NEVER)
        elif last_is_time:
            text[: self.tokens.end].fill_(_NEVER)
        times[: self._num_passed(own)].fill_(_NEVER)
        if not own:
            text.fill_(_NEVER)
            if self.tokens.max_initial_timestamp is not None:
                times[self.tokens.max_initial_timestamp + 1 :].fill_(_NEVER)
        # A time where all times together are likelier than the likeliest other token.
        likelier = times.logsumexp(dim=0) > text.max()
        text.masked_fill_(likelier, _NEVER)

    def _num_passed(self, own: Sequence[int]) -> int:
        """How many times are before the last; that one itself may come again to open a segment."""
        begin = self.tokens.timestamp_begin
        last = next((token for token in reversed(own) if token >= begin), None)
        if last is None:
            return 0
        opens = own[-1] >= begin and not (len(own) < 2 or own[-2] >= begin)
        return last - begin + (0 if opens else 1)


def _forbid(logits: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    if token_ids:
        logits.index_fill_(0, _index(token_ids, logits.device), _NEVER)


def _only(logits: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    index = _index(token_ids, logits.device)
    kept = logits[index] if len(token_ids) > 1 else 0.0
    logits.fill_(_NEVER)
    logits[index] = kept


@lru_cache(maxsize=256)
def _index(token_ids: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(token_ids, device=device)
