"""A tiny model for each task, on the stub server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from stub_server import StubServer

from tests.model.encoders.tasks import model_of
from tests.support.served_encoder import served

Servers = Callable[[str], StubServer]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda task: model_of(task, tmp_path_factory.mktemp(task)))


@pytest.fixture(scope="session")
def servers(
    models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield cache(
            lambda task: stack.enter_context(
                served(tmp_path_factory.mktemp("served"), task, models(task))
            )
        )


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, models: Callable[[str], Path]) -> Path:
    """The model for a module's ``TASK``."""
    return models(request.module.TASK)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, servers: Servers) -> StubServer:
    return servers(request.module.TASK)
