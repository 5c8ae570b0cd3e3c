"""Reads ``routing.json``: each arm's share of the model's requests.

The file lies in the model's folder, outside of its version folder, and is read again while the
model serves. Knows the file; knows nothing of requests.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ..errors import RuntimeModelError, reason

ROUTING_FILE = "routing.json"
REQUEST_ID = "request_id"
_MAX_BYTES = 2**20
_ALL = Fraction(100)
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?")


class RoutingError(RuntimeModelError):
    """The file is not as the generator writes it."""


@dataclass(frozen=True)
class Arm:
    """``engine`` is the Triton model that answers, ``weight`` its share in percent."""

    name: str
    engine: str
    weight: Fraction


@dataclass(frozen=True)
class Routing:
    """The file's content; ``sticky`` is REQUEST_ID, or the name of an input or a parameter."""

    arms: tuple[Arm, ...]
    sticky: str | None = None


class RoutingFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None

    def refresh(self) -> bool:
        """Reads the file; True if its content has changed since the last time.

        Raises:
            OSError: it can't be read; the content of the last time is kept.
        """
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            content = None
        before, self._seen = self._seen, content
        return content != before

    def read(self) -> Routing | None:
        """The routing of the last ``refresh``; None if there was no file. Raises RoutingError."""
        return None if self._seen is None else parse(self._seen)


def parse(content: bytes) -> Routing:
    """Parses a file's content. Raises RoutingError."""
    try:
        values = json.loads(content, parse_int=_number, parse_float=_number, parse_constant=_number)
        routing = _routing(values)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RoutingError(f"not what the generator writes: {reason(error, 120)}") from error
    return routing


def _routing(values: Any) -> Routing:
    arms = tuple(
        Arm(_text(arm["name"]), _text(arm["engine"]), _percent(arm["weight"]))
        for arm in values["arms"]
    )
    if len({arm.name for arm in arms}) < len(arms):
        raise ValueError("two arms of one name")
    total = sum((arm.weight for arm in arms), Fraction(0))
    if total != _ALL:
        raise ValueError(f"weights add up to {float(total):g}, not 100")
    sticky = values["sticky"]
    return Routing(arms, None if sticky is None else _text(sticky))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"got {type(value).__name__}, expected a text")
    return value


def _percent(value: Any) -> Fraction:
    if not isinstance(value, Fraction) or not 0 <= value <= _ALL:
        raise ValueError("a weight is not a number from 0 to 100")
    return value


def _number(text: str) -> Fraction:
    """The number exactly as written: 0.1 is a tenth."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:20]} is no number here")
    return Fraction(text)
