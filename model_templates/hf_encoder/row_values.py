"""Numbers and words of a request, each with the range that is allowed: converters for
``RequestFields.values``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_runtime.errors import RequestError
from hf_runtime.tensors import integer, shown, text


def integer_in(lowest: int, highest: int | None = None) -> Callable[[str, Any], int]:
    """An integer from ``lowest`` to ``highest``."""
    allowed = f"{lowest} and more" if highest is None else f"{lowest} to {highest}"

    def convert(name: str, value: Any) -> int:
        found = integer(name, value)
        if found < lowest or (highest is not None and found > highest):
            raise RequestError(f"{name}: got {shown(found)}, allowed: {allowed}")
        return found

    return convert


def one_of(*words: str) -> Callable[[str, Any], str]:
    """One of these words, in lower case or upper."""

    def convert(name: str, value: Any) -> str:
        found = text(name, value).lower()
        if found not in words:
            raise RequestError(f"{name}: got another text, allowed: {', '.join(words)}")
        return found

    return convert
