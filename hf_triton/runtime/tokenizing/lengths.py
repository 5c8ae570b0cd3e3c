"""Limits the length of texts: refuses what can't fit, and cuts a text near its place, before a
tokenizer reads it. A tokenizer takes 3 s and 170 MB for a million characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, TypeVar

from ..errors import RequestError

_CHARACTERS = 16  # a token: English has 4 or 5, and code that is indented deeply 8
_ALWAYS = 2**16  # characters: tokenised in less than a tenth of a second
_USUAL_CHARACTERS = 8  # a token, with which what is to be cut is tried first
# Tokens beside the cut depend on it: up to the next end of a word.
_SLACK_TOKENS = 128
NO_LIMIT = 10**9  # tokens: tokenizers without a limit say 1e30
# Some chat templates look from each message through all later ones: gpt-oss' takes 2 s for so many.
MAX_MESSAGES = 4096

CUT = "send truncate: true to cut it"  # the hint where a request may ask for that

Tokens = TypeVar("Tokens", bound=Sized)


def first_position(model: Any) -> int:
    """The position of a text's first token: RoBERTa's kind starts behind the padding id."""
    tables: list[Any] = [getattr(one, "position_embeddings", None) for one in model.modules()]
    padding = next((one.padding_idx for one in tables if hasattr(one, "padding_idx")), None)
    return 0 if padding is None else int(padding) + 1


def num_positions(model: Any) -> int | None:
    """The most tokens of an input; None where positions never end."""
    config = model.config.get_text_config()
    for name in ("max_position_embeddings", "max_encoder_position_embeddings"):
        number = getattr(config, name, None) or 0
        if 0 < number < NO_LIMIT:  # XLNet says -1
            return int(number) - first_position(model)
    return None


def most_characters(max_tokens: int) -> int:
    """The most characters of a text that is to have at most ``max_tokens`` tokens."""
    return max(_ALWAYS, _CHARACTERS * max_tokens)


def check_characters(field: str, num_characters: int, max_tokens: int, hint: str = "") -> None:
    """Raises RequestError for a text that is far too long; ``hint`` says what else to send."""
    most = most_characters(max_tokens)
    if num_characters > most:
        raise RequestError(
            f"{field}: got {num_characters} characters, allowed: at most {most} where "
            f"{max_tokens} tokens fit{hint and f'; {hint}'}"
        )


def check_messages(field: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises RequestError for a chat that would take its template too long."""
    calls = (one.get("tool_calls") for one in messages)
    num = len(messages) + sum(len(listed) for listed in calls if isinstance(listed, list))
    if num > MAX_MESSAGES:
        got = f"got {num}, calls of tools included"
        raise RequestError(f"{field}: {got}, allowed: at most {MAX_MESSAGES}")


def num_characters(value: Any) -> int:
    """The characters of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = (*value, *value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return sum(map(num_characters, parts))


def tokens_of_part(
    field: str,
    text: str,
    num_tokens: int,
    tokenize: Callable[[str], Tokens],
    *,
    keeps_end: bool = False,
) -> Tokens:
    """Tokenizes a text that is to be cut: all of it, or a part that has its first ``num_tokens``
    tokens, with ``keeps_end`` its last, and more. The tokens are those of the whole text but where
    a word is longer than 128 tokens. Raises RequestError: a text that is far too long has not so
    many tokens where they would be.
    """
    wanted = num_tokens + _SLACK_TOKENS
    size = _USUAL_CHARACTERS * wanted
    while size < len(text):
        found = tokenize(_part(text, size, keeps_end=keeps_end))
        if len(found) >= wanted:
            return found
        if size >= most_characters(wanted):
            check_characters(field, len(text), num_tokens)
        size *= 2
    return tokenize(text)


def _part(text: str, size: int, *, keeps_end: bool) -> str:
    """At most ``size`` characters, from or to the end of a word where there is one."""
    if keeps_end:
        start = len(text) - size
        return text[max(start, text.find(" ", start)) :]
    end = text.rfind(" ", 0, size)
    return text[: end if end > 0 else size]
