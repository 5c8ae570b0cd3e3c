"""One server of three small models behind the proxy, for all that is hostile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.served.conftest import openai_url
from tests.support.grpc_door import Door, door

__all__ = ["checked", "openai_url", "server"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with door(tmp_path_factory.mktemp("door")) as started:
        yield started


@pytest.fixture
def checked(server: Door) -> Iterator[Door]:
    """The same, which must be well after the test."""
    yield server
    server.check()
