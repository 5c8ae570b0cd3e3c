"""What every report says of how it came about: when, by which command, on what, with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from perf import machine
from perf.report.markdown import code, escaped, joined
from perf.report.schema import Run, Value


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
        yield from circumstances(self)
        told = {"model": escaped(self.model), "load": escaped(joined(self.load)), **(more or {})}
        yield from (f"- {name}: {value}" for name, value in told.items() if value)

    def origin(self) -> dict[str, Any]:
        """The first five, by name: those that a run (schema.Run) has, too."""
        values = asdict(self)
        return {name: values[name] for name in tuple(values)[:5]}


def circumstances(of: Head | Run) -> Iterator[str]:
    """A line of Markdown for each of those five that there is."""
    told = {
        "measured": escaped(of.created),
        "command": code(of.command) if of.command else "",
        "commit": escaped(of.commit),
        "hardware": escaped(joined(of.hardware)),
        "versions": escaped(joined(of.versions)),
    }
    return (f"- {name}: {value}" for name, value in told.items() if value)


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
