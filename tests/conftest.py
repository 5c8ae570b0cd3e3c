"""What all tests share: one thread for each computation, and the demo model's own answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenarios.reference import Reference

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

pytest.register_assert_rewrite("tests.scenarios")


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The demo model without a server: what every answer is compared with."""
    from tests.scenarios.reference import Reference  # torch, which most tests do without
    from tests.support.triton import DEMO_MODEL

    return Reference(DEMO_MODEL)
