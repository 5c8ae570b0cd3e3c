"""Proposes by prompt look-up, for every sequence by its own text alone: what a text goes on with
was often said in it before.

The last tokens of prompt and output are looked up where they stood last, and what followed them
there is proposed (https://github.com/apoorvumang/prompt-lookup-decoding). A token costs one
look-up in a dictionary, however long the text is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from hf_triton.text_generation.sequence.sequence import Sequence

_MOST_PLACES = 8  # that are compared

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
        """Takes the last tokens of a sequence."""
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


class Ngrams:
    """A text, and where in it the end stood before: at least ``least`` of its tokens, and where up
    to ``most`` did, there.
    """

    def __init__(self, least: int, most: int, token_ids: Tokens[int]) -> None:
        self._least, self._most = least, most
        self._tokens = list(token_ids)
        # From an n-gram of ``least`` tokens to the index after it, where it stood last.
        self._last: dict[tuple[int, ...], int] = {}
        # From that index to the one where it stood before; 0: nowhere.
        self._earlier = array("i", bytes(4 * min(least, len(self._tokens) + 1)))
        self._next = 0  # the index of the token that followed; 0: none
        starts = (self._tokens[first:] for first in range(least))
        for end, gram in enumerate(zip(*starts, strict=False), least):
            self._earlier.append(self._last.get(gram, 0))
            self._last[gram] = end
        self._look_up()

    def append(self, token_id: int) -> bool | None:
        """Adds a token; whether it is the one that was to be proposed, None where none was."""
        tokens, found = self._tokens, None
        if self._next:
            found = tokens[self._next] == token_id
            self._next = self._next + 1 if found else 0
        tokens.append(token_id)
        end = len(tokens)
        if end < self._least:
            self._earlier.append(0)
            return found
        gram = tuple(tokens[end - self._least :])
        self._earlier.append(self._last.get(gram, 0))
        self._last[gram] = end
        if not self._next:
            self._look_up()
        return found

    @property
    def has_proposal(self) -> bool:
        return self._next > 0

    def propose(self, num_tokens: int) -> list[int]:
        """What may come next; where that runs into the end of the text, the same again."""
        if not self._next:
            return []
        proposed = self._tokens[self._next : self._next + num_tokens]
        period = len(self._tokens) - self._next
        while len(proposed) < num_tokens:
            proposed.append(proposed[len(proposed) - period])
        return proposed

    def _look_up(self) -> None:
        """Takes the place where the most of the last tokens stood, of several the last one."""
        best, place = 0, self._earlier[-1]
        for _ in range(_MOST_PLACES):
            if not place:
                return
            length = self._num_equal(place)
            if length > best:
                best, self._next = length, place
            if best == self._most:
                return
            place = self._earlier[place]

    def _num_equal(self, place: int) -> int:
        """How many tokens before ``place`` are those at the end, ``most`` at most."""
        tokens, length = self._tokens, self._least
        while length < self._most and length < place:
            if tokens[place - length - 1] != tokens[-length - 1]:
                break
            length += 1
        return length
