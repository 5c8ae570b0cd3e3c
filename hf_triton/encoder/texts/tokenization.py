"""Texts to encodings: one way into the tokenizer for every task, with the length checked.

Knows the tokenizer and the model's longest input; knows no request.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.tokenizing.lengths import CUT, check_characters, most_characters

from .encoding import Encoding
from .truncation import CalledTokens, Tokens, Truncator

_MANY_CHARACTERS = 16  # a token: few texts have as many


@dataclass(eq=False)
class Tokenization:
    """A tokenizer with a longest input. May be used by several threads at once.

    ``has_token_types``: the model takes ``token_type_ids``. ``num_embeddings``: how many tokens it
    knows, where the tokenizer makes others, too. ``cuts``: which text of a pair is shortened, in
    the tokenizer's own words.
    """

    tokenizer: Any
    _: KW_ONLY
    max_length: int
    truncation: bool
    has_token_types: bool
    num_embeddings: int | None = None
    adds_special_tokens: bool = True
    cuts: str = "longest_first"

    def __post_init__(self) -> None:
        self.truncator, adds = None, self.adds_special_tokens
        if self.tokenizer.is_fast:
            self.truncator = Truncator(self.tokenizer, adds_special_tokens=adds)
        self._is_called = not _is_its_backend(self.tokenizer)
        self._call_options = {} if adds else {"add_special_tokens": False}

    def limited(self, max_length: int | None) -> Tokenization:
        """The same for texts of at most ``max_length`` tokens; None: no fewer."""
        found = copy.copy(self)
        found.max_length = min(max_length or self.max_length, self.max_length)
        return found

    def encode(
        self,
        field: str,
        text: str,
        pair: str | None = None,
        *,
        prompt: str = "",
        truncate: bool | None = None,
    ) -> Encoding:
        """One text with ``prompt`` before it, or a pair, with its special tokens. An error names
        ``field``; ``truncate`` is the request's choice, by default the model's. Raises
        RequestError.
        """
        found = self.tokens(field, prompt + text, pair, truncate=truncate)
        return self.as_encoding(found, is_cut=bool(found.overflowing))

    def pairs(
        self, field: str, text: str, seconds: Sequence[str], *, truncate: bool | None = None
    ) -> list[Encoding]:
        """A text paired with each of ``seconds``, as ``encode`` makes it, but only the text is ever
        cut. Raises RequestError.
        """
        found = self._pairs(field, text, seconds, truncate, "only_first")
        return [self.as_encoding(one) for one in found]

    def tokens(
        self,
        field: str,
        text: str,
        pair: str | None = None,
        *,
        truncate: bool | None = None,
        has_places: bool = False,
    ) -> Tokens:
        """The tokens of one text or a pair, with the length checked as ``encode`` does. With
        ``has_places`` special tokens are marked, and a fast tokenizer's have offsets.
        """
        (found,) = self._pairs(field, text, [pair], truncate, self.cuts, has_places=has_places)
        return found

    def _pairs(
        self,
        field: str,
        text: str,
        seconds: Sequence[str | None],
        truncate: bool | None,
        strategy: str,
        *,
        has_places: bool = False,
    ) -> list[Tokens]:
        cuts = self.truncation if truncate is None else truncate
        num_characters = len(text) + max(len(second or "") for second in seconds)
        if not cuts:
            check_characters(field, num_characters, self.max_length, CUT)
        found: list[Tokens] = []
        may_fit = not cuts or num_characters <= _MANY_CHARACTERS * self.max_length
        # transformers' call takes ten times as long for a short text: it is made only if it adds
        # something.
        if self.truncator is None or (self._is_called and may_fit):
            called = strategy if cuts else None
            found = [self._called(text, one, called, has_places=has_places) for one in seconds]
        is_long = cuts and any(len(one) > self.max_length for one in found)
        if self.truncator is not None and (is_long or not found):
            pairs = self.truncator.pairs
            limits = (self.max_length, strategy)
            found = [*pairs(field, text, seconds, *limits, cuts=cuts, has_places=has_places)]
        return [self._fitting(field, one) for one in found]

    def _called(
        self, text: str, pair: str | None, truncation: str | None, *, has_places: bool
    ) -> CalledTokens:
        """The result of transformers' call. A tokenizer without a truncator cuts by itself."""
        options: dict[str, Any] = dict(self._call_options)
        if has_places:
            options["return_special_tokens_mask"] = True
            options["return_offsets_mapping"] = self.tokenizer.is_fast
        if truncation is not None and self.truncator is None:
            most = most_characters(self.max_length)  # Python's tokenizers read it all
            text, pair = text[:most], pair and pair[:most]
            options |= {"truncation": truncation, "max_length": self.max_length}
            options["return_overflowing_tokens"] = True
        found = self.tokenizer(text, pair, verbose=False, **options)
        return CalledTokens(
            found["input_ids"],
            found.get("token_type_ids"),
            found.get("special_tokens_mask", []),
            found.get("offset_mapping"),
            found.get("overflowing_tokens", []),
        )

    def as_encoding(
        self, found: Tokens, positions: tuple[int, ...] | None = None, *, is_cut: bool = False
    ) -> Encoding:
        """Raises RequestError for a token that the model does not know: it would fail the step that
        it shares with others, and on a GPU the engine.
        """
        ids = found.ids
        if self.num_embeddings is not None and max(ids) >= self.num_embeddings:
            raise RequestError(
                "the text has a token that this model has no embedding for: its tokenizer makes "
                f"token {max(ids)}, the model knows 0 to {self.num_embeddings - 1}"
            )
        if not self.has_token_types:
            return Encoding(ids, None, positions, is_cut=is_cut)
        return Encoding(ids, found.type_ids or [0] * len(ids), positions, is_cut=is_cut)

    def _fitting(self, field: str, found: Tokens) -> Tokens:
        if not len(found):
            raise RequestError(f"{field}: the tokenizer makes no token of it, send another text")
        if len(found) > self.max_length:
            got = f"got {len(found)} tokens, this model takes at most {self.max_length}"
            raise RequestError(f"{field}: {got}; {CUT}")
        return found


def _is_its_backend(tokenizer: Any) -> bool:
    """Returns True for a fast tokenizer whose call adds nothing to its backend's result."""
    from transformers import PreTrainedTokenizerFast as Fast

    kind = type(tokenizer)
    return (
        tokenizer.is_fast
        and (kind.__call__, kind._encode_plus) == (Fast.__call__, Fast._encode_plus)  # noqa: SLF001
        and not hasattr(tokenizer, "_switch_to_input_mode")
    )
