"""Texts longer than a model takes, as overlapping windows that are computed side by side."""

from __future__ import annotations

import math

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing.lengths import check_characters, tokens_of_part

from .tokenization import Tokenization
from .truncation import Tokenized

_CUT = "send truncate: true to cut it"


class WindowSplitter:
    """Splits texts of a fast tokenizer into windows. May be used by several threads at once."""

    def __init__(self, tokenization: Tokenization, *, max_num_windows: int) -> None:
        assert tokenization.truncator is not None, "needs a fast tokenizer"
        self._truncator = tokenization.truncator
        self._max_num_windows = max_num_windows

    def room(self, max_length: int, *, pair: bool) -> int:
        """How many tokens of the texts a window of ``max_length`` holds beside special ones."""
        return self._truncator.room(max_length, pair=pair)

    def pieces(self, field: str, text: str, max_length: int, *, cuts: bool) -> Tokenized:
        """A text's tokens without special ones; with ``cuts`` at least those of the windows.

        Raises:
            RequestError: there is none, or the text can't fit into the windows.
        """
        most = self._max_num_windows * max_length
        if not cuts:
            check_characters(field, len(text), most, _CUT)
        found = tokens_of_part(field, text, most, self._truncator.pieces)
        if not len(found):
            raise RequestError(f"{field}: the tokenizer makes no token of it, a text is required")
        return found

    def cut(
        self,
        field: str,
        text: Tokenized,
        *,
        max_length: int,
        stride: int,
        cuts: bool,
        before: Tokenized | None = None,
    ) -> list[Tokenized]:
        """Windows of at most ``max_length`` tokens with special ones, of which neighbours have
        ``stride`` of the text in common; each begins with all of ``before``, the pair's first text.

        Args:
            field: the tensor that an error names.
            text: what is cut, in place.
            max_length: special tokens and ``before`` included; leaves room for ``stride`` + 1.
            stride: tokens.
            cuts: drop what would be beyond the most windows, instead of refusing it.
            before: the pair's first text.

        Raises:
            RequestError: more windows than ``max_num_windows``.
        """
        space = self.room(max_length, pair=before is not None) - len(before or ())
        windows = [text]
        if len(text) > space:
            self._limit(field, text, space, stride, cuts=cuts)
            windows = self._truncator.windows(text, space, stride)
        pairs = ((window, None) if before is None else (before, window) for window in windows)
        return [self._truncator.joined(*pair) for pair in pairs]

    def _limit(self, field: str, text: Tokenized, space: int, stride: int, *, cuts: bool) -> None:
        step = space - stride
        num_windows = 1 + math.ceil((len(text) - space) / step)
        if num_windows <= self._max_num_windows:
            return
        if not cuts:
            raise RequestError(
                f"{field}: got {len(text)} tokens, which are {num_windows} windows, allowed: "
                f"{self._max_num_windows} (max_num_windows); {_CUT}"
            )
        text.truncate(space + step * (self._max_num_windows - 1))
