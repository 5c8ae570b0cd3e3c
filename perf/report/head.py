"""What every report says of how it came about: when, by which command, on what, with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from perf import machine
from perf.report.markdown import code, escaped, joined

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Head:
    """Seven fields of which here() finds out those of the machine."""

    created: str  # ISO 8601, UTC
    command: str
    commit: str
    hardware: Mapping[str, Value]
    versions: Mapping[str, str]
    model: str = ""
    load: Mapping[str, Value] = field(default_factory=dict)

    def lines(self, more: Mapping[str, str] | None = None) -> Iterator[str]:
        """A line of Markdown for each, and for ``more``, which is Markdown already."""
        told = {
            "command": code(self.command) if self.command else "",
            "commit": escaped(self.commit),
            "measured": escaped(self.created),
            "hardware": escaped(joined(self.hardware)),
            "versions": escaped(joined(self.versions)),
            "model": escaped(self.model),
            "load": escaped(joined(self.load)),
            **(more or {}),
        }
        return (f"- {name}: {value}" for name, value in told.items() if value)

    def origin(self) -> dict[str, Any]:
        """The first five, by name: those that a run (schema.Run) has, too."""
        values = asdict(self)
        return {name: values[name] for name in tuple(values)[:5]}


def here(
    command: str,
    model: str = "",
    load: Mapping[str, Value] | None = None,
    *,
    hardware: Mapping[str, Value] | None = None,
    versions: Mapping[str, str] | None = None,
) -> Head:
    """Of a measurement that begins now on this machine; ``hardware`` and ``versions`` are told
    beside what the machine says of itself.
    """
    return Head(
        created=now(),
        command=command,
        commit=machine.commit(),
        hardware={**machine.hardware(), **(hardware or {})},
        versions={**(versions or {}), **machine.versions()},
        model=model,
        load=load or {},
    )


def now() -> str:
    """As ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
