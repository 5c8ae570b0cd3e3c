"""The demo model behind the stub, in each way it can be served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.served_models import MODELS_YAML
from tests.scenarios.stub_endpoint import StubEndpoint, serving_stub


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubEndpoint]:
    """The models of MODELS_YAML, each loaded when it is first asked."""
    with serving_stub(tmp_path_factory.mktemp("stub"), MODELS_YAML) as endpoint:
        yield endpoint
