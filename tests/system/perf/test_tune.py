"""``hf-triton perf tune`` itself, on servers of its own: every trial is a real server's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from perf.report.schema import read_measurements
from tests.support.triton import DEMO_MODEL

MODELS_YAML = f"""\
models:
  - name: demo
    task: text-generation
    model: {DEMO_MODEL}
    options: {{max_num_seqs: 1}}  # few
"""


def test_settings_are_tried_and_the_current_ones_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.yaml").write_text(MODELS_YAML)
    effort = ["--trials", "2", "--seconds", "1", "--repeats", "0", "--concurrency", "4"]
    load = ["--load", "prompt=6,output=4", "--search", "max_num_seqs=1,4", "--output", "run"]

    assert cli.main(["perf", "tune", "demo", *effort, *load]) == 0

    found = read_measurements(tmp_path / "run")
    settings = [one.load.settings["options.max_num_seqs"] for one in found]
    assert settings == [1, 4]
    for one in found:
        assert one.num_requests > 0, one.first_error
        assert one.output_tokens_per_s == pytest.approx(4 * one.requests_per_s, rel=0.01)
    assert (tmp_path / "models.yaml").read_text() == MODELS_YAML
    assert not (tmp_path / "model_repository").exists(), "trials have folders of their own"
