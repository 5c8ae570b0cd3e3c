"""Prompt look-up: what a text goes on with was often said in it before.

The last tokens of prompt and output are looked up where they stood last, and what followed them
there is proposed (https://github.com/apoorvumang/prompt-lookup-decoding). A token costs one look-up
in a dictionary, however long the text is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Tokens

_MOST_PLACES = 8  # that are compared


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
