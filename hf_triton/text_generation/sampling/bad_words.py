"""Token sequences that an output never completes."""

from __future__ import annotations

from collections.abc import Sequence as Rows

from ..sequence.sequence import Sequence


class BadWords:
    """``single`` are words of one token; longer ones are found by the token before their last."""

    def __init__(
        self, words: Rows[tuple[int, ...]], eos_token_ids: tuple[int, ...], vocab_size: int
    ) -> None:
        """Leaves out words that are an end-of-text token, as transformers does: forbidding one
        would keep the text from ending.
        """
        self.single: list[int] = []
        self._longer: dict[tuple[int, ...], list[int]] = {}  # all but the last token -> the last
        self._lengths: dict[int, set[int]] = {}  # of those before it, by the last but one
        for word in words:
            if not word or max(word) >= vocab_size or (len(word) == 1 and word[0] in eos_token_ids):
                continue
            if len(word) == 1:
                self.single.append(word[0])
            else:
                self._longer.setdefault(word[:-1], []).append(word[-1])
                self._lengths.setdefault(word[-2], set()).add(len(word) - 1)
        self.follows = bool(self._longer)  # whether what comes last matters
        self._most_before = max(map(len, self._longer), default=0)

    def completions(self, sequence: Sequence) -> list[int]:
        """The tokens that would complete one of the longer words after what a sequence has."""
        if not self._longer:
            return []
        before = sequence.token_ids[-self._most_before :]
        if len(before) < self._most_before:
            before = sequence.prompt_token_ids[len(before) - self._most_before :] + before
        lengths = self._lengths.get(before[-1], ()) if before else ()
        found = [self._longer.get(tuple(before[-length:]), ()) for length in lengths]
        return [token for tokens in found for token in tokens]
