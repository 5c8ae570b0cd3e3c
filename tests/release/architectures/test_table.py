"""Every type that transformers has is measured, and docs/architectures.md says how it is served."""

from __future__ import annotations

import transformers

from tests.release.architectures import table
from tests.release.architectures.measuring import KINDS, names_of

ROWS = table.read()


def test_every_type_of_transformers_has_a_row() -> None:
    untried = [
        (kind, name) for kind in KINDS for name in names_of(kind) if (kind, name) not in ROWS
    ]
    assert untried == [], f"types without a row: {table.COMMAND} with their names"


def test_the_page_is_of_the_transformers_that_is_measured() -> None:
    """An older one has fewer types, and computes some in another way."""
    here = ".".join(transformers.__version__.split(".")[:2])
    assert here == table.version(), f"install transformers {table.version()}, or: {table.COMMAND}"


def test_the_page_is_made_of_the_rows() -> None:
    assert table.text(ROWS.values()) == table.PAGE.read_text(encoding="utf-8"), table.COMMAND
