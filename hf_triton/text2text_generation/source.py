"""Reads a request's rows for an encoder-decoder: languages, prefix, truncation, beams, and texts to
the tokens that the encoder reads, within its longest input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import shown
from hf_triton.runtime.tokenizing.lengths import check_characters, tokens_of_part
from hf_triton.text_generation.loading import check_tokens
from hf_triton.text_generation.request.parsing import Prompt, PromptReader, require_no_beams
from hf_triton.text_generation.request.row_options import RowFields
from hf_triton.text_generation.request.sampling_json import lenient_boolean
from hf_triton.text_generation.sequence.request_options import OPTIONS
from hf_triton.text_generation.structured.constraint import Constraint

from .languages import Languages, SpecialTokens

_CUT = "send truncate: true to cut it"


class SourceTokenizer:
    """Tokenises texts and adds special tokens. May be used by several threads at once."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_length: int,
        vocab_size: int,
        count_unknown: Callable[[int], None],
    ) -> None:
        """``max_length`` counts special tokens; ``count_unknown`` gets each text's number of
        unknown tokens.
        """
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._vocab_size = vocab_size
        self._count_unknown = count_unknown
        self._cuts_left = getattr(tokenizer, "truncation_side", "right") == "left"

    def require_room_for(self, special_tokens: SpecialTokens) -> None:
        """Raises LoadError where special tokens leave no room for a text."""
        if special_tokens.size >= self._max_length:
            raise LoadError(
                f"max_model_len: got {self._max_length}, but special tokens alone are "
                f"{special_tokens.size}"
            )

    def encode(self, text: str, special_tokens: SpecialTokens, *, truncate: bool) -> list[int]:
        """The text's tokens between their special tokens.

        Raises:
            RequestError: too long and not to be cut, or nothing to read.
        """
        room = self._max_length - special_tokens.size
        if truncate:
            token_ids = self._cut(text, room)
        else:
            check_characters("text_input", len(text), room, _CUT)
            token_ids = self._ids(text)
        check_tokens("text_input", token_ids, self._vocab_size)
        if len(token_ids) > room:
            raise RequestError(
                f"text_input: got {len(token_ids) + special_tokens.size} tokens, this model takes "
                f"at most {self._max_length}; {_CUT}"
            )
        unknown_id = self._tokenizer.unk_token_id
        self._count_unknown(token_ids.count(unknown_id))
        return special_tokens.around(token_ids)

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        return found

    def _cut(self, text: str, room: int) -> list[int]:
        found = tokens_of_part("text_input", text, room, self._ids, keeps_end=self._cuts_left)
        return found[-room:] if self._cuts_left else found[:room]


_FIELDS = RowFields(
    ("text_input",), ("source_lang", "target_lang"), {"truncate": (lenient_boolean, None)}
)


@dataclass(frozen=True)
class SourceReader(PromptReader):
    """Parses requests for one encoder-decoder. ``beams`` is the option ``num_beams``."""

    fields: ClassVar[RowFields] = _FIELDS

    source: SourceTokenizer = field(kw_only=True)
    languages: Languages = field(kw_only=True)
    prefix: str = field(kw_only=True)
    truncation: bool = field(kw_only=True)
    beams: int = field(kw_only=True)

    def read_prompt(self, row: dict[str, Any]) -> Prompt:
        text, languages, target = row["text_input"], self.languages, row["target_lang"] or None
        if not text.strip():
            raise RequestError("text_input: got white space alone, a text is required")
        if row["add_special_tokens"] is False:
            raise RequestError("add_special_tokens: got false, this model's texts have them")
        special_tokens = languages.special_tokens_for(row["source_lang"] or None)
        start = languages.decoder_start(target)
        read = languages.marked(text, target) if languages.marks else text
        truncate = self.truncation if row["truncate"] is None else row["truncate"]
        return Prompt(
            text, self.source.encode(self.prefix + read, special_tokens, truncate=truncate), start
        )

    def num_beams(self, row: dict[str, Any]) -> int:
        asked = row["beam_width"]
        if self.beams == 1 or asked == 1:
            require_no_beams(row)
            return 1
        if asked not in (None, self.beams):
            raise RequestError(f"beam_width: got {shown(asked)}, allowed: 1 or {self.beams}")
        # Several options become one constraint.
        neutral = {name: option.neutral for name, option in OPTIONS.items() if option.neutral}
        for name, values in {**neutral, "constraint": (None,)}.items():
            if (got := row[name]) not in values:
                asks = got.kind if isinstance(got, Constraint) else name
                raise RequestError(
                    f"{asks}: this model answers by a search with {self.beams} beams, which can't "
                    "do that; send beam_width 1 to have it"
                )
        return self.beams
