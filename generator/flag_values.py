"""Numbers, ports and addresses on the command line; each type raises ArgumentTypeError."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


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


def address(of: str) -> Callable[[str], str]:
    """Reads HOST:PORT; ``of`` says whose, with an example."""

    def read(text: str) -> str:
        host, _, number = text.rpartition(":")
        try:
            port(number)
        except argparse.ArgumentTypeError:
            host = ""
        if not host or "/" in text:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected HOST:PORT of {of}")
        return text

    return read


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


def number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
