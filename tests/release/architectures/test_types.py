"""Every type is served as well as docs/architectures.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.release.architectures.measuring import KINDS
from tests.release.architectures.table import assert_no_worse, measurable


@pytest.mark.parametrize("kind, name", measurable(*KINDS))
def test_a_type_is_served_as_well_as_the_page_says(kind: str, name: str, tmp_path: Path) -> None:
    assert_no_worse(kind, name, tmp_path)
