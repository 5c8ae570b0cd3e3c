"""``hf-triton perf sweep`` itself, with the real perf_analyzer, on the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from perf.report.schema import read_measurements
from tests.support.perf_analyzer import environment_with_analyzer
from tests.support.triton import Triton

SCENARIO = """\
measurement: {window_s: 0.4, max_trials: 3, warm_up_requests: 1, stability_percent: 999}
scenarios:
  - name: chat
    models: demo
    endpoints: [http-infer, http-generate, grpc-stream]
    concurrency: 2
    input: {prompt_tokens: 6, output_tokens: 4}
"""


def test_every_endpoint_is_measured(triton: Triton, tmp_path: Path) -> None:
    environment_with_analyzer()  # else this is skipped
    (tmp_path / "s.yaml").write_text(SCENARIO)
    urls = ["--url", triton.http, "--grpc-url", triton.grpc]
    metrics = ["--metrics-url", triton.metrics_url.removeprefix("http://").removesuffix("/metrics")]
    places = ["--repository", str(triton.server.repository), "--output", str(tmp_path / "run")]

    assert cli.main(["perf", "sweep", str(tmp_path / "s.yaml"), *urls, *metrics, *places]) == 0

    found = {one.load.endpoint: one for one in read_measurements(tmp_path / "run")}
    assert len(found) == 3
    for endpoint, one in found.items():
        assert one.num_requests > 0, one.first_error
        assert one.output_tokens_per_s == pytest.approx(4 * one.requests_per_s, rel=0.01)
        assert not one.doubts
        assert one.load.prompt_tokens == "6"
        assert (one.time_to_first_token is not None) is endpoint.endswith("stream")
        assert one.server["batch_occupancy"] >= 1
        assert one.machine["server_cpu_cores"] > 0
