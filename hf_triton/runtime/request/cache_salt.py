"""Separates cached results by salt: requests share results only with equal salts. A salt is made of
the caller, from a header that Triton passes on as a parameter, and of the request's own
``cache_salt``, as in vLLM. Knows no cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import RequestError
from .abandoned_requests import CALL

CACHE_SALT = "cache_salt"
CALLER = "hf-triton-caller"
MAX_CHARACTERS = 256


def read_parameters(text: str) -> dict[str, Any]:
    """A request's parameters from their JSON object, without the call that it came with; empty
    where there are none.
    """
    # Nearly all have none; json.loads makes a decoder of its own for each call with a hook.
    found: dict[str, Any] = {} if text in ("", "{}") else _DECODER.decode(text)
    return found


def salt_of(parameter_values: Mapping[str, Any]) -> str | None:
    """The salt of a request with these parameters; None where it has neither part.

    Raises:
        RequestError: ``cache_salt`` is no text or has a length that is not allowed.
    """
    caller, given = parameter_values.get(CALLER), parameter_values.get(CACHE_SALT)
    if given is not None:
        _check(given)
    if caller is None and given is None:
        return None
    parts = json.dumps([caller, given])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def _check(given: object) -> None:
    """The error quotes nothing: a known salt reveals who else uses it."""
    if not isinstance(given, str):
        got = "a value of another type"
    elif not given:
        got = "an empty text"
    elif len(given) > MAX_CHARACTERS:
        got = f"{len(given)} characters"
    else:
        return
    raise RequestError(
        f"{CACHE_SALT}: got {got}, allowed: a text of 1 to {MAX_CHARACTERS} characters"
    )


def _with_one_caller(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The caller is all values that stand under its name, in any case: a client that adds one of
    its own becomes no other caller by it. HTTP headers arrive spelt as they were sent.
    """
    callers = [value for name, value in pairs if name.lower() == CALLER]
    values = {name: value for name, value in pairs if name.lower() not in (CALLER, CALL)}
    if not callers:
        return values
    return {**values, CALLER: callers if len(callers) > 1 else callers[0]}


_DECODER = json.JSONDecoder(object_pairs_hook=_with_one_caller)
