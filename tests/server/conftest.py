"""One real server for the whole suite, with the demo model in each way it can be served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.served_models import MODELS_YAML
from tests.support.demo_adapter import write_adapter
from tests.support.triton import Triton, serving


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """Serves the models of MODELS_YAML, one with an adapter. Checks in the end that the server
    stops gracefully.
    """
    folder = tmp_path_factory.mktemp("triton")
    adapter = write_adapter(folder / "loud")
    entry = f"  - name: batched\n    adapters: [{{name: loud, model: {adapter}}}]\n"
    models = MODELS_YAML.replace("  - name: batched\n", entry)
    with pytest.MonkeyPatch.context() as patch:
        # Small models side by side: more threads than cores would be several times slower.
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(models, folder) as running:
            yield running
