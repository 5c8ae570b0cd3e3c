"""A real server with the demo model in both profiles, and the opt-in group of the real clients.

Tests marked ``clients`` install programs from PyPI into environments of their own, so they are left
out unless a mark expression names them: ``make test ARGS="-m clients"``. The environments are kept
in the user's cache, below hf-triton/clients.
"""

from __future__ import annotations

import pytest

from tests.support.one_server import OneServer
from tests.support.triton import Triton


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clients: installs a real client from PyPI and drives it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "clients" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("clients")]
    items[:] = [item for item in items if not item.get_closest_marker("clients")]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def triton(one_server: OneServer) -> Triton:
    """``demo`` takes tensors ``[1]``, ``batched`` ``[batch, 1]``; each with its ``_stream``."""
    return one_server.with_models("demo", "batched", "embedding")
