"""Makes dataclasses from JSON values, and says which value is not what its annotation allows.

Knows numbers, texts, truths, mappings, lists and dataclasses inside each other; no files.
"""

from __future__ import annotations

import math
import types
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")
_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


def made(kind: type[Made], values: object, where: str = "") -> Made:
    """An instance of the dataclass; keys that it doesn't have, of a later version, are left out.

    Raises ValueError: ``load.endpoint: is missing``, ``duration_s: got 'x', expected a number``.
    """
    if not isinstance(values, dict):
        raise ValueError(_told(where, values, "an object"))
    hints, given = _hints(kind), {}  # type: ignore[arg-type]
    for each in fields(kind):  # type: ignore[arg-type]
        name = f"{where}.{each.name}" if where else each.name
        if each.name in values:
            given[each.name] = _checked(hints[each.name], values[each.name], name)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{name}: is missing")
    return kind(**given)


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _checked(hint: Any, value: object, where: str) -> Any:
    """``value`` as ``hint`` has it. Raises ValueError."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _of_several(inner, value, where)
    if hint is Any or hint is object:
        return value
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ValueError(_told(where, value, "an object"))
        return {name: _checked(inner[1], one, f"{where}.{name}") for name, one in value.items()}
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, list):
            raise ValueError(_told(where, value, "a list"))
        return tuple(_checked(inner[0], one, f"{where}[{at}]") for at, one in enumerate(value))
    if is_dataclass(hint):
        return made(hint, value, where)  # type: ignore[arg-type]
    return _plain(hint, value, where)


def _of_several(hints: Sequence[Any], value: object, where: str) -> Any:
    """By the one dataclass among them, else by the first that takes it."""
    left = [hint for hint in hints if hint is not type(None)]
    if value is None and len(left) < len(hints):
        return None
    if len(left) == 1:
        return _checked(left[0], value, where)
    if isinstance(value, str | int | float | bool):
        return value
    raise ValueError(_told(where, value, "a number, a text, or true or false"))


def _plain(hint: type, value: object, where: str) -> Any:
    if hint in (str, bool) and isinstance(value, hint):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if hint is float:
            return value
        if hint is int and value == int(value):
            return int(value)
    raise ValueError(_told(where, value, _WORDS[hint]))


def _told(where: str, value: object, expected: str) -> str:
    got = repr(value)
    return f"{where or 'it'}: got {got if len(got) < 60 else got[:57] + '...'}, expected {expected}"
