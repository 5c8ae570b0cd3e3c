"""What every report says of how it came about, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol


class Measured(Protocol):
    """A report that knows how it came about."""

    @property
    def created(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def hardware(self) -> Mapping[str, str | int | float]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def model(self) -> str: ...
    @property
    def load(self) -> Mapping[str, str | int | float]: ...


def circumstances(report: Measured, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """A line for each thing that a report was measured on and with."""
    context = {
        "command": f"`{report.command}`",
        "commit": report.commit,
        "measured": report.created,
        "hardware": joined(report.hardware),
        "versions": joined(report.versions),
        "model": report.model,
        "load": joined(report.load),
        **(more or {}),
    }
    return (f"- {name}: {value}" for name, value in context.items())


def joined(values: Mapping[str, str | int | float | bool | None]) -> str:
    """The values with their names, on one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
