"""Arguments that several verbs have, and how a number or a name is read from the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection


def add_places(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --repository, which ``hf-triton perf`` has too: either place will do."""
    for flag, what, default in (
        ("--config", "FILE", "models.yaml"),
        ("--repository", "FOLDER", "model_repository"),
    ):
        parser.add_argument(
            flag, default=argparse.SUPPRESS, metavar=what, help=f"default: {default}"
        )


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number within bounds. What it returns raises ArgumentTypeError."""
    expected = f"a whole number from {least}" + ("" if most is None else f" to {most}")

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) < 19
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected {expected}")
        return int(text)

    return read


def counts(text: str) -> tuple[int, ...]:
    """``1,8,32``: numbers from 1, each once. Raises ArgumentTypeError."""
    try:
        found = tuple(map(whole(), text.split(",")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected numbers from 1, as in 1,8,32"
        ) from None
    return tuple(dict.fromkeys(found))


def positive(text: str) -> float:
    """A number above zero. Raises ArgumentTypeError."""
    number = _number(text)
    if number is None or number <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number above 0")
    return number


def share(text: str) -> float:
    """``5%`` or ``0.05`` as 0.05. Raises ArgumentTypeError."""
    is_percent = text.rstrip().endswith("%")
    number = _number(text.rstrip().removesuffix("%"))
    if number is None or number < 0 or (not is_percent and number >= 1):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected per cent as in 5%, or 0.05")
    return number / 100 if is_percent else number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def names(allowed: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Reads ``a,b`` out of ``allowed``. What it returns raises ArgumentTypeError."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(text.split(",")))
        if set(found) - set(allowed):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {','.join(allowed)}")
        return found

    return read


def port_range(text: str) -> range:
    """``19100-19149`` as a range. Raises ArgumentTypeError."""
    try:
        first, last = map(whole(1, 65535), text.split("-"))
    except (argparse.ArgumentTypeError, ValueError):
        first, last = 1, 0
    if first > last:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected two ports, as in 19100-19149")
    return range(first, last + 1)
