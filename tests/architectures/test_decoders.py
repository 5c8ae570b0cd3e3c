"""Every decoder type is served as well as docs/architectures.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architectures.table import assert_no_worse, measurable
from tests.support.slow_cases import slow_but

# A runner or a kind of batch each.
QUICK = [("causal", name) for name in ("llama", "bloom", "qwen3_5_text", "git", "moshi")]


@pytest.mark.parametrize("kind, name", slow_but(QUICK, measurable("causal")))
def test_a_type_is_served_as_well_as_the_page_says(kind: str, name: str, tmp_path: Path) -> None:
    assert_no_worse(kind, name, tmp_path)
