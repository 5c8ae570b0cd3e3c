"""The server that ``hf-triton perf sweep --serve`` starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.sweep import server
from perf.sweep.server import TritonView, own_server
from tests.support.triton import DEMO_MODEL, ROOT

MODELS_YAML = f"""\
defaults: {{load: manual}}
models:
  - {{name: demo, task: text-generation, model: {DEMO_MODEL}}}
  - {{name: vectors, task: feature-extraction, model: {ROOT}/demo/embedding, layout: ensemble}}
  - {{name: asleep, task: feature-extraction, model: {ROOT}/demo/embedding, load: on_demand}}
  - {{name: other, task: text-generation, model: ./none}}
"""


def test_models_that_serve_does_not_load_by_itself_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, repository = tmp_path / "models.yaml", tmp_path / "model_repository"
    config.write_text(MODELS_YAML)
    (tmp_path / "none").mkdir()
    names = ["demo", "vectors", "asleep"]
    with own_server(config, repository, tmp_path, names) as addresses:
        view = TritonView(addresses)
        assert all(view.is_ready(name) for name in [*names, "demo_stream"])
        assert not view.is_ready("other")
        monkeypatch.setattr(server, "TIMEOUT_S", 0.5)  # a load takes longer
        assert view.config("asleep") is not None
