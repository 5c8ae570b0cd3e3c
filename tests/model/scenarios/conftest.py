"""The demo model behind the stub, in each way it can be served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.served_models import MODELS_YAML
from tests.scenarios.stub_endpoint import StubEndpoint, serving_stub

# A model that is only for what a stub alone can be made to do.
_STUBS_OWN = """\
  - name: tight_padded
    options: {engine: generate, max_num_seqs: 1, max_queue_size: 2}
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubEndpoint]:
    """The models of MODELS_YAML, and ``tight_padded``, each loaded when it is first asked."""
    with serving_stub(tmp_path_factory.mktemp("stub"), MODELS_YAML + _STUBS_OWN) as endpoint:
        yield endpoint
