"""A model on the stub server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stub_server import StubServer

from tests.support.served_encoder import served


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StubServer]:
    """Serves a module's ``model`` for its ``TASK``."""
    with served(tmp_path_factory.mktemp("served"), request.module.TASK, model) as server:
        yield server
