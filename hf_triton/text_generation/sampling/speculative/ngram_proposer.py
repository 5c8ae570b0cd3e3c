"""Proposes by prompt look-up, for every sequence by its own text alone."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.text_generation.sequence.sequence import Sequence

from .ngrams import Ngrams

_FIRST_RATE = 0.5
_WEIGHT, _WEIGHT_OF_ALL = 1 / 8, 1 / 64  # of the last token, in rates


@dataclass
class _Followed:
    ngrams: Ngrams
    rate: float


class NgramProposer:
    """Looks up at least ``least`` and at most ``most`` tokens. How often a sequence's own text says
    what comes next is known without computing anything, whether that was drafted or not.
    """

    method = "ngram"
    is_steady = True

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._followed: dict[Sequence, _Followed] = {}
        self._usual_rate = _FIRST_RATE  # a new sequence's

    def rate(self, sequence: Sequence) -> float:
        """How likely the next proposed token is right; 0 where there is none."""
        followed = self._followed.get(sequence)
        return followed.rate if followed is not None and followed.ngrams.has_proposal else 0.0

    def propose(self, lengths: dict[Sequence, int]) -> dict[Sequence, list[int]]:
        """So many tokens of each, at most."""
        return {
            sequence: self._followed[sequence].ngrams.propose(length)
            for sequence, length in lengths.items()
        }

    def follow(self, sequence: Sequence, token_ids: list[int]) -> None:
        """The last tokens of a sequence."""
        followed = self._followed.get(sequence)
        if followed is None:
            known = sequence.prompt_token_ids + sequence.token_ids
            ngrams = Ngrams(self._least, self._most, known)
            self._followed[sequence] = _Followed(ngrams, self._usual_rate)
            return
        for token_id in token_ids:
            was_right = followed.ngrams.append(token_id)
            if was_right is not None:
                followed.rate += _WEIGHT * (was_right - followed.rate)
                self._usual_rate += _WEIGHT_OF_ALL * (was_right - self._usual_rate)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a finished sequence."""
        self._followed.pop(sequence, None)
