"""Numbers on the command line of ``hf-triton perf report`` and ``compare``."""

from __future__ import annotations

import argparse
import math


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
