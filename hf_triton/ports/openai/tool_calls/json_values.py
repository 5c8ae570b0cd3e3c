"""JSON as models write it: with line ends inside of texts, and escapes that JSON does not know."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NoReturn

# A backslash that begins no escape of JSON's matches with a group.
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|())')
_SPACE = re.compile(r"\s*")
_LARGEST = sys.float_info.max


def _number(text: str) -> float:
    """JSON has no infinity to write down again."""
    return max(-_LARGEST, min(float(text), _LARGEST))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# Without ``strict``, texts may hold line ends.
_decode = json.JSONDecoder(parse_float=_number, parse_constant=_no_number, strict=False).raw_decode


def decode(text: str, begin: int = 0, *, repairs: bool = True) -> tuple[Any, int]:
    """A JSON value after white space, and where it ends. Backslashes of unknown escapes stand for
    themselves where it ``repairs``. Raises ValueError, RecursionError.
    """
    begin = after_space(text, begin)
    try:
        return _decode(text, begin)
    except json.JSONDecodeError as error:
        if not repairs or not has_bad_escape(error):
            raise
    text = text[begin:]
    bad = [found.start() for found in _ESCAPE.finditer(text) if found.lastindex]
    value, end = _decode(escape_backslashes(text, _ESCAPE), 0)
    return value, begin + end - sum(at + number < end for number, at in enumerate(bad))


def has_bad_escape(error: json.JSONDecodeError) -> bool:
    """Whether JSON is not valid because of a backslash."""
    return error.msg.startswith("Invalid \\")


def escape_backslashes(text: str, escape: re.Pattern[str]) -> str:
    """Doubles the backslashes that ``escape`` matches with a group."""
    return escape.sub(lambda found: "\\\\" if found.lastindex else found[0], text)


def after_space(text: str, begin: int) -> int:
    """Where white space ends."""
    found = _SPACE.match(text, begin)
    return found.end() if found else begin


def as_json(arguments: Any) -> str | None:
    """The JSON of a call's arguments, which a model may have written as a text; None of what is no
    object. Half of a surrogate pair, which is no Unicode, stays an escape.
    """
    try:
        found = decode_whole(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(found, dict):
            return None
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        return text if text.isascii() or _is_unicode(text) else json.dumps(found)
    except (TypeError, ValueError, RecursionError):
        return None


def decode_whole(text: str) -> Any:
    """The JSON value that a text is. Raises ValueError, RecursionError."""
    value, end = decode(text)
    if after_space(text, end) < len(text):
        raise ValueError("more than one value")
    return value


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
