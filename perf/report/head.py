"""What every report says of how it came about: when, by which command, on what, with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from perf import machine
from perf.report.markdown import code, escaped, joined
from perf.report.schema import Run, Value


def here(
    command: str,
    hardware: Mapping[str, Value] | None = None,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Those fields of a Run, of a measurement that begins now on this machine; ``hardware`` and
    ``versions`` are told beside what the machine says of itself.
    """
    return {
        "created": now(),
        "command": command,
        "commit": machine.commit(),
        "hardware": {**machine.hardware(), **(hardware or {})},
        "versions": {**(versions or {}), **machine.versions()},
    }


def circumstances(run: Run) -> Iterator[str]:
    """A line of Markdown for each of those five that there is."""
    told = {
        "measured": escaped(run.created),
        "command": code(run.command) if run.command else "",
        "commit": escaped(run.commit),
        "hardware": escaped(joined(run.hardware)),
        "versions": escaped(joined(run.versions)),
    }
    return (f"- {name}: {value}" for name, value in told.items() if value)


def now() -> str:
    """As ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
