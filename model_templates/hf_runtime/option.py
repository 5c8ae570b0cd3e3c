"""How a task's ``options.py`` declares an option, for the generator to check and describe.

Standard library only.
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
    told = {"help": about, "unit": unit, "min": least, "exclusive_min": above, "max": most}
    metadata = {name: value for name, value in told.items() if value is not None}
    found: Any = field(default=default, metadata={**metadata, "engines": engines})
    return found  # type: ignore[no-any-return]
