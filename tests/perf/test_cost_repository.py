"""The four ways to serve one model, as a server takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_generation.engine_metrics import EngineMetrics

from perf.baselines.repositories import MODEL_FOLDER
from perf.serving_costs.repository import (
    DIRECT,
    ENGINE,
    FRONT,
    NO_METRICS,
    TWIN,
    UNCOUNTED,
    lay_out_costs,
)
from tests.perf.test_repositories import config_of


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costs")
    (folder / MODEL_FOLDER).mkdir()
    return lay_out_costs(folder)


def test_one_streams_behind_a_front_and_the_others_are_served_directly(repository: Path) -> None:
    assert {path.parent.name for path in repository.glob("*/config.pbtxt")} == {
        *(DIRECT, TWIN, UNCOUNTED, FRONT, ENGINE)
    }
    decoupled = [
        name
        for name in (DIRECT, TWIN, UNCOUNTED, FRONT, ENGINE)
        if config_of(repository / name).model_transaction_policy.decoupled
    ]
    assert decoupled == [ENGINE]


def test_only_one_copy_of_the_runtime_has_its_metrics_taken_out(repository: Path) -> None:
    for name, addition in NO_METRICS.items():
        as_generated = (repository / DIRECT / "1" / name).read_text(encoding="utf-8")
        changed = (repository / UNCOUNTED / "1" / name).read_text(encoding="utf-8")
        assert changed == as_generated + addition


def test_what_is_taken_out_is_there() -> None:
    assert all(hasattr(EngineMetrics, name) for name in ("computed", "published", "ended"))
    subclass = type("EngineMetrics", (EngineMetrics,), {})
    exec(NO_METRICS["engine_metrics.py"], {"EngineMetrics": subclass})
    metrics = subclass()
    metrics.computed(32, [])
    assert (metrics.num_generated_tokens, metrics.batch_size.sum) == (0, 0.0)
