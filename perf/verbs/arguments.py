"""Shared arguments of the perf verbs."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from generator.flag_values import number

T = TypeVar("T")


def share(text: str) -> float:
    """Parses ``5%`` or ``0.05`` as 0.05. Raises ArgumentTypeError."""
    is_percent = text.rstrip().endswith("%")
    found = number(text.rstrip().removesuffix("%"))
    if found is None or found < 0 or (not is_percent and found >= 1):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected per cent as in 5%, or 0.05")
    return found / 100 if is_percent else found


def options_from(kind: type[T], args: argparse.Namespace, **more: Any) -> T:
    """Makes a dataclass of the arguments of its fields' names, and the command line."""
    more["command"] = shlex.join(["hf-triton", *sys.argv[1:]])
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in more and hasattr(args, each.name):
            value = getattr(args, each.name)
            more[each.name] = Path(value) if each.name in ("config", "repository") else value
    return kind(**more)
