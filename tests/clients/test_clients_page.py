"""docs/clients.md has a row for each client that is driven, and no driver is left out."""

from __future__ import annotations

import re

from tests.clients.real_clients import CLIENTS, DRIVERS
from tests.clients.table import rows

_TRIED = re.compile(r'\btried\(\s*"([^"]+)"')


def test_each_driver_has_a_row() -> None:
    found = rows()

    assert sorted(found, key=str.lower) == sorted((one.name for one in CLIENTS), key=str.lower)
    assert {one.driver for one in CLIENTS} == {path.name for path in DRIVERS.glob("drive_*")}


def test_each_row_has_what_its_driver_tries_and_what_does_not_work() -> None:
    found = rows()

    for client in CLIENTS:
        _, tried, result = found[client.name].split(" | ")[1:]
        source = (DRIVERS / client.driver).read_text(encoding="utf-8")
        assert set(_TRIED.findall(source)) <= set(tried.split("; ")), client.name
        told = [f"**{name}**: {reason}" for name, reason in client.gaps.items()]
        assert result.removesuffix(" |\n") == ("; ".join(told) or "works")
