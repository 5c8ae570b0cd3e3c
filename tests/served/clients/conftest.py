"""The one server with the demo model in both profiles."""

from __future__ import annotations

import pytest

from tests.support.one_server import OneServer
from tests.support.triton import Triton


@pytest.fixture(scope="session")
def triton(one_server: OneServer) -> Triton:
    """``demo`` takes tensors ``[1]``, ``batched`` ``[batch, 1]``; each with its ``_stream``."""
    return one_server.with_models("demo", "batched", "embedding")
