"""Numbers and names as they stand on a command line of perf."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def client_counts(text: str) -> tuple[int, ...]:
    """``1,8,32`` as numbers."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected numbers from 1, as in 1,8,32")
    return tuple(dict.fromkeys(counts))


def positive(text: str) -> int:
    """A number from 1."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from 1")
    return int(text)


def names(text: str, allowed: Collection[str]) -> tuple[str, ...]:
    """``a,b`` out of ``allowed``."""
    found = tuple(dict.fromkeys(text.split(",")))
    if set(found) - set(allowed):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {','.join(allowed)}")
    return found


def port_range(text: str) -> range:
    """``19100-19149`` as a range."""
    first, _, last = text.partition("-")
    if all(_is_port(part) for part in (first, last)) and int(first) <= int(last):
        return range(int(first), int(last) + 1)
    raise argparse.ArgumentTypeError(f"got {text!r}, expected two ports, as in 19100-19149")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535
