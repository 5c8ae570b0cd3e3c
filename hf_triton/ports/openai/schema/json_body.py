"""A request's body: one JSON object, as large as is read in a moment. No error quotes a text: it
may be a prompt.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from hf_triton.ports.openai.schema.errors import ApiError

# A body that is all structure takes so long to read that other callers would wait for it.
_STRUCTURE = (b"[", b"{", b":")
_MOST_STRUCTURE = 250_000
# So is one that is all elements: no prompt of token ids has more.
_MOST_ELEMENTS = 2**20 + 2**18


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``. Raises ApiError: 400 for anything else."""
    check_structure(num_structure(data))
    if data.count(b",") > _MOST_ELEMENTS:
        allowed = f"at most {_MOST_ELEMENTS} of the character ,"
        raise ApiError(400, f"the body: got too many elements, allowed: {allowed}")
    try:
        text = data.decode("utf-8")
        with no_garbage_collection():
            body = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if "\\u" in text:
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise ApiError(400, "the body is not valid Unicode: half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, f"the body is not valid JSON at {where}: {error.msg}") from None
    except RecursionError:
        raise ApiError(400, "the body is not valid JSON: nested too deeply") from None
    except ValueError:  # Python's own limit on the digits of an integer
        raise ApiError(400, "the body is not valid JSON: a number has too many digits") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body: got {kind_of(body)}, allowed: a JSON object")
    return body


def num_structure(data: bytes) -> int:
    """How much of JSON is structure."""
    return sum(map(data.count, _STRUCTURE))


def check_structure(number: int) -> None:
    """Raises ApiError, 400, for too much of it in one request."""
    if number > _MOST_STRUCTURE:
        allowed = f"at most {_MOST_STRUCTURE} of the characters [ {{ and :"
        raise ApiError(400, f"the body: got too many lists, objects and names, allowed: {allowed}")


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A parser makes no garbage, and looking for it among a million lists takes seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def kind_of(value: Any) -> str:
    """What a value is, in JSON's words, without showing a text."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        long = isinstance(value, int) and abs(value) >= 10**30
        return "an integer of more than 30 digits" if long else str(value)
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"


def short(name: str) -> str:
    """A name as an error shows it; what does not look like one may be a misplaced text."""
    return (
        name if re.fullmatch(r"[\w.-]{1,60}(\[\])?", name) else f"a name of {len(name)} characters"
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ApiError(400, f"{short(twice)}: given twice in one object", param=short(twice))
    return values


def _no_constant(name: str) -> NoReturn:
    raise ApiError(400, f"the body is not valid JSON: {name} is not a number")
