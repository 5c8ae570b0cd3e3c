"""The languages that a model translates from and to, and the special tokens around a text.

Three kinds of tokenizer: with language codes (M2M100, NLLB, mBART), where the source language is a
special token around the input and the target language the first token of the output; with marks
(Marian's ``>>fra<<``), the target language at the beginning of the input; and without languages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.json_text import short
from hf_triton.text_generation.sequence.sequence import DecoderStart

_PROBE = "a b"


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids before and after a text's own."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return len(self.before) + len(self.after)

    def around(self, token_ids: list[int]) -> list[int]:
        """The text's tokens with the special ones around them."""
        return [*self.before, *token_ids, *self.after]


def special_tokens_of(tokenizer: Any) -> SpecialTokens:
    """What the tokenizer, with its present source language, puts around a text.

    Raises:
        LoadError: special tokens change the text's own tokens.
    """
    plain = tokenizer(_PROBE, add_special_tokens=False).input_ids
    whole = tokenizer(_PROBE).input_ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if whole[start:end] == plain:
            return SpecialTokens(tuple(whole[:start]), tuple(whole[end:]))
    raise LoadError("the tokenizer's special tokens can't be told from those of a text")


_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
_MARK = re.compile(r">>([^<>]+)<<")
_SHOWN = 12


@dataclass(frozen=True)
class Languages:
    """``special_tokens_by_source`` has an entry for each source language, ``token_ids`` and
    ``marks`` for each target language. A request that names no language gets the defaults, and
    ``special_tokens`` where the model has no source languages.

    ``starts_with_language``: the decoder's start token is the target language itself (mBART's
    first models). ``needs_target``: without one the output would be in any language.
    """

    special_tokens: SpecialTokens
    special_tokens_by_source: Mapping[str, SpecialTokens]
    token_ids: Mapping[str, int]
    marks: Mapping[str, str]
    own_start: DecoderStart | None
    starts_with_language: bool
    needs_target: bool
    source_lang: str | None = None
    target_lang: str | None = None

    @property
    def targets(self) -> list[str]:
        """The languages that a request may ask for."""
        return sorted((*self.token_ids, *self.marks))

    def special_tokens_for(self, source_lang: str | None) -> SpecialTokens:
        """The special tokens around a text of that language."""
        code = source_lang or self.source_lang
        if code is None:
            return self.special_tokens
        if code not in self.special_tokens_by_source:
            raise RequestError(_unknown("source_lang", code, self.special_tokens_by_source))
        return self.special_tokens_by_source[code]

    def marked(self, text: str, target_lang: str | None) -> str:
        """The text behind the mark of its target language, for models with marks."""
        own = _MARK.match(text)
        known = own is not None and own.group(1) in self.marks
        if known and target_lang and own is not None and _bare(target_lang) != own.group(1):
            raise RequestError(
                f"target_lang: got {short(target_lang)}, but text_input begins with "
                f"{own.group()}; send one of them"
            )
        code = _bare(target_lang or self.target_lang or "")
        return text if known or code not in self.marks else f"{self.marks[code]} {text}"

    def decoder_start(self, target_lang: str | None) -> DecoderStart | None:
        """The first tokens of an output in that language."""
        code = _bare(target_lang or self.target_lang or "")
        if code and code not in self.token_ids and code not in self.marks:
            raise RequestError(_unknown("target_lang", code, self.targets))
        if not code and self.needs_target:
            raise RequestError(f"target_lang: missing, allowed: {_some('', self.targets)}")
        if code not in self.token_ids:
            return self.own_start
        if self.starts_with_language or self.own_start is None:
            return DecoderStart(self.token_ids[code])
        return DecoderStart(self.own_start.token_id, self.token_ids[code])


def find_languages(
    tokenizer: Any,
    own_start: DecoderStart | None,
    *,
    is_forced: bool,
    source_lang: str | None,
    target_lang: str | None,
) -> Languages:
    """The languages that the tokenizer knows, with these defaults, else the tokenizer's own source.

    Args:
        tokenizer: its source language may be changed here, and is put back.
        own_start: the model's.
        is_forced: the model's settings for generation force a first token.
        source_lang: the option.
        target_lang: the option.

    Raises:
        LoadError: an option names a language that the tokenizer does not know.
    """
    codes = _codes(tokenizer)
    starts_with_language = own_start is not None and own_start.token_id in codes.values()
    languages = Languages(
        special_tokens=special_tokens_of(tokenizer),
        special_tokens_by_source=_special_tokens_by_source(tokenizer, codes),
        token_ids=codes,
        marks={} if codes else _marks(tokenizer),
        own_start=own_start,
        starts_with_language=starts_with_language,
        needs_target=bool(codes) and not (is_forced or starts_with_language),
        source_lang=source_lang or (tokenizer.src_lang if codes else None),
        target_lang=target_lang,
    )
    try:
        languages.special_tokens_for(source_lang)
        if target_lang is not None:
            languages.decoder_start(None)
    except RequestError as error:
        raise LoadError(str(error)) from None
    return languages


def _codes(tokenizer: Any) -> dict[str, int]:
    """Language codes to token ids; empty for a tokenizer without a source language."""
    if not hasattr(tokenizer, "src_lang"):
        return {}
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes is None:  # NLLB: codes are special tokens like others
        added = tokenizer.added_tokens_encoder
        codes = {token: id_ for token, id_ in added.items() if _CODE.fullmatch(token)}
    return {str(code): int(token_id) for code, token_id in codes.items()}


def _special_tokens_by_source(tokenizer: Any, codes: Iterable[str]) -> dict[str, SpecialTokens]:
    if not codes:
        return {}
    special_tokens_by_source, own = {}, tokenizer.src_lang
    for code in codes:
        tokenizer.src_lang = code
        special_tokens_by_source[code] = special_tokens_of(tokenizer)
    tokenizer.src_lang = own
    return special_tokens_by_source


def _marks(tokenizer: Any) -> dict[str, str]:
    marks = getattr(tokenizer, "supported_language_codes", None) or ()
    return {found.group(1): mark for mark in marks if (found := _MARK.fullmatch(mark))}


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
    """At most twelve known codes for an error; those that begin like ``code`` come first."""
    codes = sorted(known)
    near = [other for other in codes if code and other.lower().startswith(code[:2].lower())]
    near = [*difflib.get_close_matches(code, codes, 3), *near]
    ordered = list(dict.fromkeys((*near, *codes)))
    rest = len(ordered) - _SHOWN
    shown = ", ".join(ordered[:_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown
