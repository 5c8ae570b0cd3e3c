"""perf_analyzer, the one in tritonclient's wheel: by itself, and below ``hf-triton perf sweep``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hf_triton.cli import main as cli
from perf.report.schema import read_measurements
from tests.scenarios.reference import Reference
from tests.support.perf_analyzer import environment_with_analyzer
from tests.support.triton import Triton

PROMPTS = ("How can you be", "Once upon a time")
NUM_REQUESTS = 6
GRPC = ("-i", "grpc", "--request-parameter", "max_tokens:40:int")  # over HTTP it is a tensor
STREAM = (*GRPC, "--streaming", "--async", "--concurrency-range", "2")
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
        assert one.load.prompt_tokens == "6"
        assert (one.time_to_first_token is not None) is endpoint.endswith("stream")
        assert one.server["batch_occupancy"] >= 1
        assert one.machine["server_cpu_cores"] > 0


@pytest.mark.threat("closed-apis-break-clients")
@pytest.mark.parametrize(
    "model, arguments, options",
    [
        ("demo", ("-i", "http"), {"max_tokens": [40]}),
        ("batched", GRPC, {}),
        ("demo_stream", STREAM, {"stream": [True]}),
        ("batched_stream", STREAM, {"stream": [False]}),
    ],
)
def test_each_request_is_answered_with_its_own_text(
    triton: Triton,
    reference: Reference,
    tmp_path: Path,
    model: str,
    arguments: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    data, export = tmp_path / "input.json", tmp_path / "export.json"
    data.write_text(json.dumps({"data": [{"text_input": [one], **options} for one in PROMPTS]}))
    address = triton.grpc if "grpc" in arguments else triton.http
    command = [
        *("perf_analyzer", "-m", model, "-u", address, "--input-data", str(data)),
        *("--request-count", str(NUM_REQUESTS), "--profile-export-file", str(export), *arguments),
    ]
    for _ in range(3):  # it has been seen to succeed with an empty export
        export.unlink(missing_ok=True)  # else it is a usage error
        done = subprocess.run(
            command, env=environment_with_analyzer(), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        if export.stat().st_size:
            break
    [experiment] = json.loads(export.read_text())["experiments"]
    requests = experiment["requests"]
    assert len(requests) >= NUM_REQUESTS - 1  # those in flight at the end are not exported
    for request in requests:
        # Its exports hold rubbish for outputs that were not sent.
        text = "".join(part["text_output"] for part in request["response_outputs"])
        assert text == reference.text(request["request_inputs"]["text_input"], 40)
        assert (len(request["response_timestamps"]) > 1) is (options.get("stream") == [True])
