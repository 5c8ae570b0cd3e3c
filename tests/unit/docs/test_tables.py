"""Tables of docs/ say what the code says."""

from __future__ import annotations

import pytest

from tests.unit.docs.tables import DOCS, TABLES, written


@pytest.mark.parametrize("page", TABLES)
def test_a_page_has_the_tables_of_the_code(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert written(page, text) == text, "write it: python -m tests.unit.docs.tables"
