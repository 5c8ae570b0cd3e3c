"""Parses the JSON of requests and writes that of answers. Mistakes become RequestErrors, which
never quote the text.
"""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from typing import Any

from ..errors import NO_NUMBERS, EngineError, RequestError
from .tensors import kind_of

MAX_CHARACTERS = 16 * 2**20
# Includes files in base64; parsing time depends on structure, not on length.
MAX_CHARACTERS_WITH_FILES = 64 * 2**20
_MOST_STRUCTURE = 250_000


def read_json(field: str, text: str, max_characters: int = MAX_CHARACTERS) -> Any:
    """Raises RequestError, which says where the text is broken, or how long it may be."""
    if len(text) > MAX_CHARACTERS and sum(map(text.count, "[{:")) > _MOST_STRUCTURE:
        max_characters = MAX_CHARACTERS
    if len(text) > max_characters:
        got = f"got {len(text)} characters"
        raise RequestError(f"{field}: {got}, allowed: at most {max_characters}")
    # Python's garbage collection scans all objects again and again while many are made: without it
    # 16 MiB of brackets hold the interpreter's lock for 0.3 s instead of 2.4.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(field, pairs))
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise RequestError(f"{field}: not valid JSON at {where}: {error.msg}") from None
    except UnicodeEncodeError:
        raise RequestError(f"{field}: not valid Unicode: half of a surrogate pair") from None
    except RecursionError:
        raise RequestError(f"{field}: not valid JSON: nested too deeply") from None
    except ValueError:
        # Python's own limit on the digits of an integer.
        raise RequestError(f"{field}: not valid JSON: a number has too many digits") from None
    finally:
        if was_collecting:
            gc.enable()


def read_object(field: str, text: str) -> dict[str, Any]:
    value = read_json(field, text)
    if not isinstance(value, dict):
        raise RequestError(f"{field}: got {kind_of(value)}, allowed: a JSON object")
    return value


def read_list(field: str, text: str, max_characters: int = MAX_CHARACTERS) -> list[Any]:
    value = read_json(field, text, max_characters)
    if not isinstance(value, list):
        raise RequestError(f"{field}: got {kind_of(value)}, allowed: a JSON list")
    return value


def written(value: object) -> str:
    """Raises EngineError for a number that is NaN or infinite, which JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise EngineError(NO_NUMBERS) from None


def short(name: str) -> str:
    """A name as an error shows it; what does not look like one could be a prompt."""
    return name if re.fullmatch(r"[\w.-]{1,40}", name) else f"a name of {len(name)} characters"


def _unique(field: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
        raise RequestError(f"{field}: {short(twice)} is given twice")
    return values
