"""Types for argparse: numbers, ports and lists. Each raises ArgumentTypeError."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection


def whole(
    least: int = 1, most: int | None = None, what: str = "whole number"
) -> Callable[[str], int]:
    expected = f"a {what} from {least}" + ("" if most is None else f" to {most}")

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) < 19
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"got {text[:80]!r}, expected {expected}")
        return int(text)

    return read


port = whole(1, 65535, "port")


def positive(text: str) -> float:
    found = number(text)
    if found is None or found <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")
    return found


def zero_or_more(text: str) -> float:
    found = number(text)
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number, 0 or more")
    return found


def counts(text: str) -> list[int]:
    """Reads ``1,8,32``; sorts it and drops duplicates."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 2**20 for word in words):
        raise argparse.ArgumentTypeError(f"got '{text}', expected whole numbers such as 16,128")
    return sorted({int(word) for word in words})


def names(allowed: Collection[str]) -> Callable[[str], list[str]]:
    """Reads ``a,b``; keeps the order and drops duplicates."""

    def read(text: str) -> list[str]:
        found = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in found if name not in allowed]
        if unknown or not found:
            got = unknown[0] if unknown else text
            raise argparse.ArgumentTypeError(f"got '{got}', expected some of {', '.join(allowed)}")
        return list(dict.fromkeys(found))

    return read


def number(text: str) -> float | None:
    """Returns the number, or None for other text, NaN and infinity."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
