"""Reads a request's rows for an encoder-decoder: languages, prefix, truncation, beams, and texts to
the tokens that the encoder reads, within its longest input.

Three kinds of tokenizer: with language codes (M2M100, NLLB, mBART), where the source language is a
special token around the input and the target language the first token of the output; with marks
(Marian's ``>>fra<<``), the target language at the beginning of the input; and without languages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import short
from hf_triton.runtime.request.tensors import shown
from hf_triton.runtime.tokenizing.lengths import CUT, check_characters, tokens_of_part
from hf_triton.text_generation.generation_loading import check_tokens
from hf_triton.text_generation.request.parsing import Prompt, PromptReader, require_no_beams
from hf_triton.text_generation.request.row_options import RowFields
from hf_triton.text_generation.request.sampling_json import lenient_boolean
from hf_triton.text_generation.sequence.request_options import OPTIONS
from hf_triton.text_generation.sequence.sequence import DecoderStart
from hf_triton.text_generation.structured.constraint import Constraint

_PROBE = "a b"


@dataclass(frozen=True)
class SpecialTokens:
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, token_ids: list[int]) -> list[int]:
        return [*self.before, *token_ids, *self.after]


def special_tokens_of(tokenizer: Any) -> SpecialTokens:
    """Finds the tokens that the tokenizer, with its present source language, puts around a text.
    Raises LoadError where special tokens change the text's own tokens.
    """
    plain = tokenizer(_PROBE, add_special_tokens=False).input_ids
    whole = tokenizer(_PROBE).input_ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if whole[start:end] == plain:
            return SpecialTokens(tuple(whole[:start]), tuple(whole[end:]))
    raise LoadError("the tokenizer's special tokens can't be distinguished from a text's own")


_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
_MARK = re.compile(r">>([^<>]+)<<")
_SHOWN = 12


class Languages:
    """``special_tokens_by_source`` has an entry for each source language, ``token_ids`` and
    ``marks`` for each target language. A request that names no language gets the defaults, and
    ``special_tokens`` where the model has no source languages.
    """

    def __init__(
        self,
        tokenizer: Any,
        own_start: DecoderStart | None,
        *,
        is_forced: bool,
        source_lang: str | None,
        target_lang: str | None,
    ) -> None:
        """The languages that the tokenizer knows, with the options as defaults. ``is_forced``: the
        model's settings for generation force a first token. Raises LoadError for an unknown
        language.
        """
        self.token_ids = codes = _codes(tokenizer)
        self.special_tokens = special_tokens_of(tokenizer)
        own: str | None = getattr(tokenizer, "src_lang", None)
        self.special_tokens_by_source: dict[str, SpecialTokens] = {}
        for code in codes:
            tokenizer.src_lang = code
            self.special_tokens_by_source[code] = special_tokens_of(tokenizer)
        if codes:
            tokenizer.src_lang = own
        marks = () if codes else getattr(tokenizer, "supported_language_codes", None) or ()
        self.marks = {found.group(1): mark for mark in marks if (found := _MARK.fullmatch(mark))}
        self._own_start = own_start
        # The decoder's start token is the target language itself (mBART's first models).
        self._starts_with_language = own_start is not None and own_start.token_id in codes.values()
        # Without a target the output would be in any language.
        self._needs_target = bool(codes) and not (is_forced or self._starts_with_language)
        self._source_lang, self._target_lang = source_lang or (own if codes else None), target_lang
        try:
            self.special_tokens_for(source_lang)
            if target_lang is not None:
                self.decoder_start(None)
        except RequestError as error:
            raise LoadError(str(error)) from None

    @property
    def targets(self) -> list[str]:
        return sorted((*self.token_ids, *self.marks))

    def special_tokens_for(self, source_lang: str | None) -> SpecialTokens:
        code = source_lang or self._source_lang
        if code is None:
            return self.special_tokens
        if code not in self.special_tokens_by_source:
            raise RequestError(_unknown("source_lang", code, self.special_tokens_by_source))
        return self.special_tokens_by_source[code]

    def marked(self, text: str, target_lang: str | None) -> str:
        own = _MARK.match(text)
        if own is None or own.group(1) not in self.marks:
            code = _bare(target_lang or self._target_lang or "")
            return f"{self.marks[code]} {text}" if code in self.marks else text
        if target_lang and _bare(target_lang) != own.group(1):
            raise RequestError(
                f"target_lang: got {short(target_lang)}, but text_input begins with "
                f"{own.group()}; send one of them"
            )
        return text

    def decoder_start(self, target_lang: str | None) -> DecoderStart | None:
        code = _bare(target_lang or self._target_lang or "")
        if code and code not in self.token_ids and code not in self.marks:
            raise RequestError(_unknown("target_lang", code, self.targets))
        if not code and self._needs_target:
            raise RequestError(f"target_lang: missing, allowed: {_some('', self.targets)}")
        if code not in self.token_ids:
            return self._own_start
        if self._starts_with_language or self._own_start is None:
            return DecoderStart(self.token_ids[code])
        return DecoderStart(self._own_start.token_id, self.token_ids[code])


def _codes(tokenizer: Any) -> dict[str, int]:
    """Language codes to token ids; empty for a tokenizer without a source language."""
    if not hasattr(tokenizer, "src_lang"):
        return {}
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes is None:  # NLLB: codes are special tokens like others
        added = tokenizer.added_tokens_encoder
        codes = {token: id_ for token, id_ in added.items() if _CODE.fullmatch(token)}
    return {str(code): int(token_id) for code, token_id in codes.items()}


def _bare(code: str) -> str:
    """Removes a mark's brackets: ``fra`` for ``>>fra<<``."""
    found = _MARK.fullmatch(code)
    return found.group(1) if found else code


def _unknown(field: str, code: str, known: Iterable[str]) -> str:
    allowed = _some(code, known)
    if not allowed:
        return f"{field}: got {short(code)}, but this model has no languages to choose from there"
    return f"{field}: got {short(code)}, allowed: {allowed}"


def _some(code: str, known: Iterable[str]) -> str:
    """Some known codes for an error; those that begin like ``code`` come first."""
    codes = sorted(known)
    near = [other for other in codes if code and other.lower().startswith(code[:2].lower())]
    near = [*difflib.get_close_matches(code, codes, 3), *near]
    ordered = list(dict.fromkeys((*near, *codes)))
    rest = len(ordered) - _SHOWN
    shown = ", ".join(ordered[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown


# Tokens of a text, between special ones; with ``truncate`` a text that is too long is cut.
Encode = Callable[..., list[int]]


def source_encoder(tokenizer: Any, *, max_length: int, vocab_size: int) -> Encode:
    """A function from a text and SpecialTokens to tokens, at most ``max_length`` together. It may
    be used by several threads at once, and raises RequestError for a text that is too long and not
    to be cut, and for nothing to read.
    """
    keeps_end = getattr(tokenizer, "truncation_side", "right") == "left"

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        return found

    def encode(text: str, special_tokens: SpecialTokens, *, truncate: bool) -> list[int]:
        room = max_length - special_tokens.size
        if truncate:
            token_ids = tokens_of_part("text_input", text, room, ids, keeps_end=keeps_end)
            token_ids = token_ids[-room:] if keeps_end else token_ids[:room]
        else:
            check_characters("text_input", len(text), room, CUT)
            token_ids = ids(text)
        check_tokens("text_input", token_ids, vocab_size)
        if len(token_ids) > room:
            raise RequestError(
                f"text_input: got {len(token_ids) + special_tokens.size} tokens, this model takes "
                f"at most {max_length}; {CUT}"
            )
        return special_tokens.around(token_ids)

    return encode


FIELDS = RowFields(
    ("text_input",), ("source_lang", "target_lang"), {"truncate": (lenient_boolean, None)}
)


@dataclass(frozen=True)
class SourceReader(PromptReader):
    """Parses requests for one encoder-decoder. ``beams`` is the option ``num_beams``."""

    fields: ClassVar[RowFields] = FIELDS

    encode: Encode = field(kw_only=True)
    languages: Languages = field(kw_only=True)
    prefix: str = field(kw_only=True)
    truncation: bool = field(kw_only=True)
    beams: int = field(kw_only=True)

    def read_prompt(self, row: dict[str, Any]) -> Prompt:
        text, languages, target = row["text_input"], self.languages, row["target_lang"] or None
        if not text.strip():
            raise RequestError("text_input: got only white space, a text is required")
        if row["add_special_tokens"] is False:
            raise RequestError("add_special_tokens: got false, this model's texts have them")
        special_tokens = languages.special_tokens_for(row["source_lang"] or None)
        start = languages.decoder_start(target)
        read = languages.marked(text, target) if languages.marks else text
        truncate = self.truncation if row["truncate"] is None else row["truncate"]
        token_ids = self.encode(self.prefix + read, special_tokens, truncate=truncate)
        return Prompt(text, token_ids, start)

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
