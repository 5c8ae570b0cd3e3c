"""docs/architectures.md has a row for every type that transformers has, and its rows still hold."""

from __future__ import annotations

import transformers

from tests.release.architectures import table
from tests.release.architectures.measuring import KINDS, names_of

PAGE = table.read()


def test_every_type_of_transformers_has_a_row() -> None:
    untried = [
        (kind, name) for kind in KINDS for name in names_of(kind) if (kind, name) not in PAGE
    ]
    assert untried == [], f"types without a row: {table.COMMAND} with their names"


def test_the_page_is_of_the_transformers_that_is_measured() -> None:
    """An older one has fewer types, and computes some in another way."""
    here = ".".join(transformers.__version__.split(".")[:2])
    assert here == table.version(), f"install transformers {table.version()}, or: {table.COMMAND}"


def test_a_page_read_and_written_again_is_the_same() -> None:
    lines = [line for line in table.text(PAGE.values()).splitlines() if line.startswith("| `")]
    page = table.PAGE.read_text(encoding="utf-8").splitlines()
    assert lines == [line for line in page if line.startswith("| `")]
