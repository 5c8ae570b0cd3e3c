"""OpenAI's port in front of the one server, without a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.triton import Triton
from tests.unit.openai_api.conftest import openai_port


@pytest.fixture(scope="module")
def openai_url(triton: Triton) -> Iterator[str]:
    """``triton`` is the module's own."""
    with openai_port(triton, None) as url:
        yield url
