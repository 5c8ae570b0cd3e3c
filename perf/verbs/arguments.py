"""Shared arguments of the perf verbs, and parsers of lists and ranges on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection

from generator.flag_values import number, whole


def add_places(parser: argparse.ArgumentParser) -> None:
    """Adds --config and --repository, which ``hf-triton perf`` has too."""
    for name, what in (("config", "FILE"), ("repository", "FOLDER")):
        parser.add_argument(
            f"--{name}",
            dest=f"given_{name}",
            default=argparse.SUPPRESS,
            metavar=what,
            help="as before the verb",
        )


def counts(text: str) -> tuple[int, ...]:
    """Parses ``1,8,32``: numbers from 1, each once. Raises ArgumentTypeError."""
    try:
        found = tuple(map(whole(), text.split(",")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected numbers from 1, as in 1,8,32"
        ) from None
    return tuple(dict.fromkeys(found))


def share(text: str) -> float:
    """Parses ``5%`` or ``0.05`` as 0.05. Raises ArgumentTypeError."""
    is_percent = text.rstrip().endswith("%")
    found = number(text.rstrip().removesuffix("%"))
    if found is None or found < 0 or (not is_percent and found >= 1):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected per cent as in 5%, or 0.05")
    return found / 100 if is_percent else found


def names(allowed: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Returns a parser of ``a,b`` with these allowed names; it raises ArgumentTypeError."""

    def read(text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(text.split(",")))
        if set(found) - set(allowed):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {','.join(allowed)}")
        return found

    return read
