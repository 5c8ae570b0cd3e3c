"""Requests as msgspec's Structs: the types of their fields, and how one is read. The served schema
is made of the same Structs. No error quotes a text: it may be a prompt.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from hf_triton.ports.openai.schema.errors import ApiError, bad_field, of_field
from hf_triton.runtime.request.tensors import kind_of

# A body of structure alone takes so long to parse that other callers would wait.
_STRUCTURE = (b"[", b"{", b":")
_MOST_STRUCTURE = 250_000
# So is one that is all elements: no prompt of token ids has more.
_MOST_ELEMENTS = 2**20 + 2**18
_LIKE, _VERY_LIKE = 0.6, 0.8  # difflib's own, and of what is taken for misspelt
# Nothing in Triton holds a larger number.
_MOST_INTEGER = 2**64
MOST_INT32 = 2**31 - 1

Json = dict[str, Any]
Read = TypeVar("Read", bound=Struct)


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object in ``data``. Raises ApiError, 400, for anything else."""
    check_structure(num_structure(data))
    if data.count(b",") > _MOST_ELEMENTS:
        allowed = f"at most {_MOST_ELEMENTS} of the character ,"
        raise ApiError(400, f"the body: got too many elements, allowed: {allowed}")
    try:
        body = msgspec.json.decode(data)  # which refuses NaN, 1e999 and half a surrogate pair
    except msgspec.MsgspecError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "the body is not valid JSON: nested too deeply") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body: got {kind_of(body)}, allowed: a JSON object")
    return body


def num_structure(data: bytes) -> int:
    return sum(map(data.count, _STRUCTURE))


def check_structure(number: int) -> None:
    if number > _MOST_STRUCTURE:
        allowed = f"at most {_MOST_STRUCTURE} of the characters [ {{ and :"
        raise ApiError(400, f"the body: got too many lists, objects and names, allowed: {allowed}")


def short(name: str) -> str:
    """A name as an error shows it; what does not look like one may be a misplaced text."""
    return (
        name if re.fullmatch(r"[\w.-]{1,60}(\[\])?", name) else f"a name of {len(name)} characters"
    )


def present(body: Struct | None, *names: str) -> dict[str, Any]:
    found = ((name, getattr(body, name, None)) for name in names)
    return {name: value for name, value in found if value is not None}


def only(*values: Any) -> Meta:
    """A field that takes only these values, which change nothing."""
    different = [value for at, value in enumerate(values) if value not in values[:at]]
    # By their texts, for to typing's cache 1 is True.
    extra = {"only": values, "texts": repr(values)}
    return Meta(extra=extra, extra_json_schema={"enum": [*different, None]})


def refused(why: str, *but: Any) -> Any:
    """A field that takes nothing ``but`` these values; its error says ``why``."""
    rules = {"refused": why, "only": but}
    return Annotated[Any, Meta(extra=rules, extra_json_schema={"enum": [*but, None]})]


def instead(of_this_path: str) -> Any:
    """A field of another path, which has another name on this one."""
    return refused(f"not a field of this path; send {of_this_path}")


_WITHIN = {"minimum": 1 - _MOST_INTEGER, "maximum": _MOST_INTEGER - 1}  # beyond msgspec's bounds
Integer = Annotated[int, Meta(extra={"within": _MOST_INTEGER}, extra_json_schema=_WITHIN)]
Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Count = Annotated[int, Meta(ge=1, le=MOST_INT32)]  # as Triton's tensors hold them
Filled = Annotated[str, Meta(min_length=1)]
Texts = str | list[str]
Integers = Annotated[list[int], Meta(extra={"within": _MOST_INTEGER})]
JsonList = Annotated[list[Json], Meta(min_length=1)]
# Token ids, and what to add to their logits.
Biases = dict[Annotated[str, Meta(pattern="^[0-9]{1,18}$")], Number]
# By the kinds of a model's options.
KINDS: Mapping[str, Any] = {
    "integer": Integer,
    "number": Number,
    "boolean": bool,
    "text": str,
    "texts": Texts,
    "integers": Integers,
    "biases": Biases,
}


def also(fields: Mapping[str, Any]) -> Callable[[type[Read]], type[Read]]:
    """Gives a Struct further fields, of types by name; all of them are optional."""

    def make(kind: type[Read]) -> type[Read]:
        named = [
            (name, one if getattr(one, "__origin__", one) is Any else one | None, None)
            for name, one in fields.items()
        ]
        made: type[Read] = msgspec.defstruct(  # type: ignore[assignment]
            kind.__name__, named, bases=(kind,), kw_only=True, module=kind.__module__
        )
        made.__doc__ = kind.__doc__
        return made

    return make


def read(kind: type[Read], given: Any, place: str = "") -> Read:
    """The Struct of ``given``, which stands at ``place``. Raises ApiError, 400, for a field that
    is unknown or not what it must be. Unless the Struct forbids unknown names, they are left out,
    as vLLM and llama.cpp do it, but for those that look like misspelt ones.
    """
    _check_fields(kind, given, place)
    found: Read = convert(kind, given, place)
    return found


def convert(kind: Any, given: Any, place: str) -> Any:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _as_told(kind, given, place, str(error)) from None


_type_of = functools.cache(inspect.type_info)  # milliseconds for a large Struct


class _Field(NamedTuple):
    """``rules`` are those of ``only`` and the like; ``inner`` is the Struct in a field."""

    rules: Mapping[str, Any]
    inner: type[Struct] | None


@functools.cache
def fields_of(kind: type[Struct]) -> Mapping[str, _Field]:
    """The fields of a Struct by their names in JSON."""
    info: Any = _type_of(kind)
    found = {}
    for field in info.fields:
        rules, inner = dict[str, Any](), None
        for one in getattr(field.type, "types", (field.type,)):  # of a union
            rules |= getattr(one, "extra", None) or {}
            inner = one.cls if isinstance(one, inspect.StructType) and one.tag is None else inner
        found[field.encode_name] = _Field(rules, inner)
    return found


def within(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _check_fields(kind: type[Struct], given: Any, place: str) -> None:
    """Checks names, and values as far as msgspec has no types for them."""
    known, is_strict = fields_of(kind), kind.__struct_config__.forbid_unknown_fields
    for name, value in given.items() if isinstance(given, dict) else ():
        where = within(place, short(name))
        if name not in known:
            cutoff = _LIKE if is_strict else _VERY_LIKE
            nearest = difflib.get_close_matches(short(name), sorted(known), 1, cutoff)
            if is_strict or nearest:
                hint = f", did you mean {nearest[0]}?" if nearest else ""
                raise of_field(where, f"unknown or unsupported field{hint}")
        elif value is not None:
            _check_value(known[name], value, where)


def _check_value(field: _Field, value: Any, where: str) -> None:
    rules = field.rules
    if field.inner:
        _check_fields(field.inner, value, where)
    good = rules.get("only", ())
    if "only" in rules and not any(type(value) is type(one) and value == one for one in good):
        if "refused" in rules:
            raise of_field(where, rules["refused"])
        allowed = f"{' or '.join(map(json.dumps, good)) or 'null'} (nothing else)"
        raise bad_field(where, f"another value ({kind_of(value)})", allowed)
    for number in (value if isinstance(value, list) else [value]) if "within" in rules else ():
        if isinstance(number, int) and abs(number) >= rules["within"]:
            raise bad_field(where, "an integer of more than 64 bits", "a smaller one")


_AT = re.compile(r" - at `(key` in `)?\$(.*)`$")
_STEP = re.compile(r"\.(\w+(?:\[\])?)|(\[[0-9.]+\])")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_WORDS: Sequence[tuple[type, str]] = (
    (inspect.BoolType, "true or false"),
    (inspect.IntType, "an integer"),
    (inspect.FloatType, "a number"),
    (inspect.StrType, "a text"),
    (inspect.StructType, "an object"),
    (inspect.DictType, "an object"),
)


def _as_told(kind: Any, given: Any, place: str, text: str) -> ApiError:
    """A msgspec error with the place in our notation, what was got and what is allowed."""
    at = _AT.search(text)
    steps = [found[1] or found[2] for found in _STEP.finditer(at[2] if at else "")]
    missing = _MISSING.match(text)
    if missing:
        steps.append(missing[1])
    value = given
    for step in steps:
        place = within(place, step) if step[0] != "[" else place + step.replace("[...]", "")
        value = _inner(value, step)
    allowed = _words(_members(_type_of(kind), steps))
    if at and at[1]:
        return bad_field(place, "a name that is not an id", "token ids, such as 42")
    return bad_field(place, "none" if value is None else _got(value, text), allowed)


def _inner(value: Any, step: str) -> Any:
    if step == "[...]":
        return next(iter(value.values()), None) if len(value) == 1 else value
    if isinstance(value, dict):
        return value.get(step)
    return value[int(step[1:-1])] if isinstance(value, list) and step[0] == "[" else None


def _got(value: Any, text: str) -> str:
    if text.startswith("Invalid value"):  # a tag
        return short(value) if isinstance(value, str) else kind_of(value)
    if text.startswith("Invalid") or value == "":
        return "another text" if value else "an empty text"
    return f"{kind_of(value)} of {len(value)}" if " length " in text else kind_of(value)


def _members(kind: Any, steps: Sequence[str]) -> list[Any]:
    """The types that a place may have; a Struct's tag is the text that its field takes."""
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type, steps)
    if isinstance(kind, inspect.UnionType):
        return [found for one in kind.types for found in _members(one, steps)]
    if not steps:
        return [kind]
    step, *rest = steps
    if step[0] == "[":
        of = getattr(kind, "item_type", getattr(kind, "value_type", None))
        return _members(of, rest) if of else []
    if isinstance(kind, inspect.StructType):
        if step == kind.tag_field and kind.tag is not None:
            return [inspect.LiteralType((kind.tag,))]
        return [
            m for one in kind.fields if one.encode_name == step for m in _members(one.type, rest)
        ]
    return []


def _words(kinds: Sequence[Any]) -> str:
    texts = [str(one) for kind in kinds for one in getattr(kind, "values", ())]
    found = [", ".join(sorted(texts))] if texts else []
    for kind in kinds:
        found += [word + _bounds(kind) for of, word in _WORDS if isinstance(kind, of)]
        if isinstance(kind, inspect.ListType):
            items = _words(_members(kind.item_type, ())).replace("a text", "texts")
            items = items.replace("an integer", "integers").replace("an object", "objects")
            found.append(f"a list of {items.replace('a list', 'lists')}{_bounds(kind)}")
    return " or ".join(dict.fromkeys(found)) or "a value"


def _bounds(kind: Any) -> str:
    if isinstance(kind, inspect.IntType) and kind.ge is not None:
        return f" ({kind.ge} to {kind.le})" if kind.le else f" ({kind.ge} and more)"
    most = getattr(kind, "max_length", None)
    return f" (at most {most})" if most else ""
