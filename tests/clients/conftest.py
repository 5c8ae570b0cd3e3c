"""A real server with the demo model in both profiles, and the opt-in group of the real clients.

Tests marked ``clients`` install programs from PyPI into environments of their own, so they are left
out unless a mark expression names them: ``make test ARGS="-m clients"``. The environments are kept
in the folder that HF_TRITON_CLIENTS_DIR names, else in pytest's cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.triton import DEMO_MODEL, Triton, serving

MODELS_YAML = f"""\
defaults:
  task: text-generation
  model: {DEMO_MODEL}
models:
  - name: demo
  - name: batched
    max_batch_size: 8
  - name: embedding
    task: feature-extraction
    model: {DEMO_MODEL.parent / "embedding"}
"""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "clients: installs a real client from PyPI and drives it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "clients" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("clients")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """``demo`` takes tensors ``[1]``, ``batched`` ``[batch, 1]``; each with its ``_stream``."""
    folder = tmp_path_factory.mktemp("clients")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with serving(MODELS_YAML, folder) as running:
            yield running
