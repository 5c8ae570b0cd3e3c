"""The table in docs/clients.md: a row for each client, written by the run that drove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
_HEAD = "| client | version | result |\n| --- | --- | --- |\n"


@dataclass(frozen=True)
class Tried:
    """One thing that a driver tried; ``detail`` is what the client said where it failed."""

    name: str
    ok: bool
    detail: str = ""


def rows() -> dict[str, str]:
    """The rows of the page, each with its line's end, by client."""
    lines = PAGE.read_text(encoding="utf-8").partition(_HEAD)[2].splitlines(keepends=True)
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line[0] == "|"}


def write_row(client: str, version: str, tried: Sequence[Tried], gaps: Mapping[str, str]) -> None:
    """Puts a client's row in its place."""
    found = {**rows(), client: f"| {client} | {version} | {_result(tried, gaps)} |\n"}
    page = PAGE.read_text(encoding="utf-8").partition(_HEAD)
    after = page[2][sum(map(len, rows().values())) :]
    body = "".join(found[name] for name in sorted(found, key=str.lower))
    PAGE.write_text(f"{page[0]}{_HEAD}{body}{after}", encoding="utf-8")


def _result(tried: Sequence[Tried], gaps: Mapping[str, str]) -> str:
    failed = [one for one in tried if not one.ok]
    told = [f"**{_cell(one.name)}**: {_cell(gaps.get(one.name, 'fails'))}" for one in failed]
    return "; ".join(told) or "works"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
