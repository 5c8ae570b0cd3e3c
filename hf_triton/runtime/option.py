"""Declares an option in a task's ``options.py``, for the generator to check and describe; and the
options that several engines share. Standard library only.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, TypeVar

T = TypeVar("T")


def option(
    default: T,
    about: str,
    *,
    unit: str | None = None,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    engines: tuple[str, ...] = (),
) -> T:
    """A field of a task's dataclass ``Options``: its default, its help, its unit and range, and the
    ``engines`` that alone know it. Read by generator/spec/task_folders.py.
    """
    told = {"help": about, "unit": unit, "minimum": least, "exclusive_min": above, "maximum": most}
    found: Any = field(default=default, metadata={**told, "engines": engines})
    return found  # type: ignore[no-any-return]


def unload_grace() -> float:
    return option(
        20.0,
        "how long running requests may continue when the model is unloaded; those that "
        "are not finished then are answered with 503",
        unit="seconds",
        least=0,
    )


def step_watchdog() -> float:
    return option(
        300.0,
        "longest step of the engine; when one takes longer, its requests fail, and the "
        "model is not ready until the step ends",
        unit="seconds",
        above=0,
    )


def above_limit(options: Any, name: str, limit: str) -> list[tuple[str, str]]:
    """The mistake, as (field, message), that one option is above another, where both are set."""
    got, most = getattr(options, name), getattr(options, limit)
    if got is None or most is None or got <= most:
        return []
    return [(name, f"got {got}, expected at most {limit} ({most})")]
