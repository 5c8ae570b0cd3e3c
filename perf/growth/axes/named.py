"""Every axis by its name, and what the command line says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from generator.errors import UsageError
from perf.growth.axes import levels, models_in_server, models_in_yaml, prompts
from perf.growth.axes.axis import Axis

AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        models_in_yaml.AXIS,
        levels.REQUESTS,
        levels.CLIENTS,
        prompts.AXIS,
        models_in_server.PLAIN,
        models_in_server.TORCH,
    )
}


def chosen_axes(text: str | None) -> list[Axis]:
    """``clients,prompts`` as axes, in AXES' order; all without a text. Raises UsageError."""
    names = list(AXES) if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in AXES:
            raise UsageError(f"--axes: got '{name}', expected some of {', '.join(AXES)}")
    return [axis for name, axis in AXES.items() if name in names]


def given_points(texts: Sequence[str], axes: Sequence[Axis]) -> dict[str, tuple[int, ...]]:
    """``["clients=1,2,4"]`` by axis, ascending. Raises UsageError."""
    by_name = {axis.name: axis for axis in axes}
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in by_name:
            names = ", ".join(by_name)
            raise UsageError(f"--points: got '{text}', expected AXIS=N,N,... of {names}")
        if name in found:
            raise UsageError(f"--points: {name} is given twice")
        found[name] = tuple(
            sorted({_point(word.strip(), by_name[name]) for word in values.split(",")})
        )
    return found


def _point(word: str, axis: Axis) -> int:
    is_number = word.isascii() and word.isdecimal() and len(word) < 10
    if not is_number or not 1 <= int(word) <= axis.highest:
        allowed = f"whole numbers from 1 to {axis.highest:,}, as in {axis.name}=1,2,4"
        raise UsageError(f"--points {axis.name}: got '{word}', expected {allowed}")
    return int(word)
