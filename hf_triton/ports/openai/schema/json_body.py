"""A request's body: one JSON object, and the types of its fields, each with the JSON schema that is
served of it. No error quotes a text: it may be a prompt.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from hf_triton.ports.openai.schema.errors import ApiError, bad_field

_TEXTS = "a text or a list of texts"
# A body that is all structure takes so long to read that other callers would wait for it.
_STRUCTURE = (b"[", b"{", b":")
_MOST_STRUCTURE = 250_000
# So is one that is all elements: no prompt of token ids has more.
_MOST_ELEMENTS = 2**20 + 2**18
# Nothing in Triton holds a larger number.
_MOST_INTEGER = 2**64
MOST_INT32 = 2**31 - 1

Json = dict[str, Any]
Check = Callable[[str, Any], Any]
OneCheck = TypeVar("OneCheck", bound=Check)
_SCHEMAS: dict[Check, Json] = {}


def takes(**schema: Any) -> Callable[[OneCheck], OneCheck]:
    """Notes the JSON schema of what a check takes."""

    def note(check: OneCheck) -> OneCheck:
        _SCHEMAS[check] = schema
        return check

    return note


def schema_of(check: Check) -> Json:
    """The JSON schema of what a check takes; anything where none is noted."""
    return _SCHEMAS.get(check, {})


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


@takes(type="number")
def number(name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise bad_field(name, kind_of(value), "a number")
    return value


@takes(type="integer", minimum=1 - _MOST_INTEGER, maximum=_MOST_INTEGER - 1)
def integer(name: str, value: Any) -> int:
    """An integer; neither a boolean nor a fraction."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_field(name, kind_of(value), "an integer")
    if abs(value) >= _MOST_INTEGER:
        raise bad_field(name, "an integer of more than 64 bits", "a smaller one")
    return value


@takes(type="integer", minimum=1, maximum=MOST_INT32)
def count(name: str, value: Any) -> int:
    """A positive integer of 32 bits, as Triton's tensors hold them."""
    if not 1 <= integer(name, value) <= MOST_INT32:
        raise bad_field(name, kind_of(value), f"1 to {MOST_INT32}")
    return int(value)


@takes(type="boolean")
def boolean(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise bad_field(name, kind_of(value), "true or false")
    return value


@takes(type="string")
def text(name: str, value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise bad_field(name, kind_of(value), "a text")
    return value


@takes(type="string", minLength=1)
def filled(name: str, value: Any) -> str:
    """A text that is not empty."""
    if not text(name, value):
        raise bad_field(name, "an empty text", "a text")
    return str(value)


@takes(anyOf=[{"type": "string"}, {"type": "array", "items": {"type": "string"}}])
def texts(name: str, value: Any) -> list[str]:
    """A text or a list of them."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list):
        raise bad_field(name, kind_of(value), _TEXTS)
    for element in found:
        if not isinstance(element, str):
            raise bad_field(name, f"a list with {kind_of(element)}", _TEXTS)
    return found


@takes(type="string", format="binary")
def file(name: str, value: Any) -> Any:  # noqa: ARG001, as the others
    """A file of a form."""
    return value


def anything(name: str, value: Any) -> Any:  # noqa: ARG001, as the others
    """A value whose type is the model's to judge."""
    return value


@takes(description="is taken and changes nothing")
def ignored(name: str, value: Any) -> Any:  # noqa: ARG001, as the others
    """A value that means nothing here, and by whose absence nobody is misled."""
    return value


@takes(type="array", items=schema_of(integer))
def integers(name: str, value: Any) -> list[int]:
    """A list of integers."""
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), "a list of integers")
    return [integer(name, element) for element in value]


@takes(type="array", items={"type": "object"})
def objects(name: str, value: Any) -> list[Any]:
    """A list of objects."""
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), "a list of objects")
    for position, element in enumerate(value):
        json_object(f"{name}[{position}]", element)
    return value


@takes(type="array", items={"type": "object"}, minItems=1)
def json_list(name: str, value: Any) -> list[Any]:
    """A list that is not empty, of objects."""
    if value == []:
        raise bad_field(name, "an empty list", "a list of objects")
    return objects(name, value)


@takes(type="object")
def json_object(name: str, value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise bad_field(name, kind_of(value), "an object")
    return value


@takes(anyOf=[{"type": "string"}, {"type": "object"}])
def text_or_object(name: str, value: Any) -> str | dict[str, Any]:
    """A text or an object."""
    if not isinstance(value, str | dict):
        raise bad_field(name, kind_of(value), "a text or an object")
    return value


@takes(anyOf=[{"type": "string"}, {"type": "array", "items": {"type": "object"}}])
def text_or_objects(name: str, value: Any) -> str | list[Any]:
    """A text or a list of objects."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad_field(name, kind_of(value), "a text or a list of objects")
    return objects(name, value)


@takes(
    type="object",
    propertyNames={"pattern": "^[0-9]{1,18}$"},
    additionalProperties={"type": "number"},
)
def biases(name: str, value: Any) -> dict[str, float]:
    """An object of token ids and what to add to their logits."""
    for token, bias in json_object(name, value).items():
        if not re.fullmatch(r"[0-9]{1,18}", token):
            raise bad_field(name, "a name that is no token id", "token ids, such as 42")
        number(name, bias)
    return dict(value)


def only(*values: Any) -> Check:
    """A check that takes these values alone: they ask for nothing beyond what is done anyway."""
    allowed = " or ".join(map(json.dumps, values)) or "null"

    @takes(enum=[value for at, value in enumerate(values) if value not in values[:at]])
    def check(name: str, value: Any) -> Any:
        if not any(type(value) is type(good) and value == good for good in values):
            raise bad_field(name, f"another value ({kind_of(value)})", f"{allowed} (nothing else)")
        return value

    return check


def one_of(*texts: str) -> Check:
    """A check that takes these texts alone."""

    @takes(enum=[*texts])
    def check(name: str, value: Any) -> Any:
        if text(name, value) not in texts:
            allowed = f"{', '.join(texts[:-1])} or {texts[-1]}"
            raise bad_field(name, "another text", allowed)
        return value

    return check


def refused(why: str) -> Check:
    """A check that takes nothing, and says ``why``."""

    @takes(enum=[])
    def check(name: str, value: Any) -> Any:  # noqa: ARG001, as the others
        raise ApiError(400, f"{name}: {why}", name)

    return check


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


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ApiError(400, f"{short(twice)}: given twice in one object", param=short(twice))
    return values


def _no_constant(name: str) -> NoReturn:
    raise ApiError(400, f"the body is not valid JSON: {name} is not a number")
