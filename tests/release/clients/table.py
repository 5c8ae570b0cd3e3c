"""The list in docs/clients.md: a line for each client, written by the run that drove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
_HEAD = "## Tried\n\n"


@dataclass(frozen=True)
class Tried:
    """One thing that a driver tried; ``detail`` is what the client said where it failed."""

    name: str
    ok: bool
    detail: str = ""


def lines() -> dict[str, str]:
    """The lines of the list, each with its line's end, by client."""
    found = PAGE.read_text(encoding="utf-8").partition(_HEAD)[2].splitlines(keepends=True)
    return {_client(line): line for line in found if line.startswith("- ")}


def _client(line: str) -> str:
    return line.removeprefix("- ").partition(":")[0].strip().rpartition(" ")[0]


def write_line(client: str, version: str, tried: Sequence[Tried], gaps: Mapping[str, str]) -> None:
    """Puts a client's line in its place."""
    found = {**lines(), client: f"- {client} {version}{_result(tried, gaps)}\n"}
    before, head, after = PAGE.read_text(encoding="utf-8").partition(_HEAD)
    prose = "".join(line for line in after.splitlines(keepends=True) if line[:2] != "- ")
    listed = "".join(found[name] for name in sorted(found, key=str.lower))
    PAGE.write_text(f"{before}{head}{prose.rstrip()}\n\n{listed}", encoding="utf-8")


def _result(tried: Sequence[Tried], gaps: Mapping[str, str]) -> str:
    """The failures; empty if all works."""
    failed = [one for one in tried if not one.ok]
    told = [f"**{_line(one.name)}**: {_line(gaps.get(one.name, 'fails'))}" for one in failed]
    return f": {'; '.join(told)}" if told else ""


def _line(text: str) -> str:
    return text.replace("\n", " ")
