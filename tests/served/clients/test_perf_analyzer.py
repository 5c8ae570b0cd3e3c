"""perf_analyzer itself, the one in tritonclient's wheel, over HTTP, gRPC and a gRPC stream.

``--request-parameter`` is for gRPC only; over HTTP, options are tensors in ``--input-data``. Its
exports hold rubbish for outputs that were not sent: only ``text_output`` is read.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.reference import Reference
from tests.support.perf_analyzer import environment_with_analyzer
from tests.support.triton import Triton

PROMPTS = ("How can you be", "Once upon a time")
NUM_REQUESTS = 6
GRPC = ("-i", "grpc", "--request-parameter", "max_tokens:40:int")


def run(triton: Triton, folder: Path, model: str, *arguments: str, **options: Any) -> Any:
    """Measures a few requests; each request of the export, with its inputs and outputs."""
    data = [{"text_input": [prompt], **options} for prompt in PROMPTS]
    (folder / "input.json").write_text(json.dumps({"data": data}))
    export = folder / "export.json"
    command = [
        *("perf_analyzer", "-m", model, "-u", triton.grpc if GRPC[0] in arguments else triton.http),
        *("--input-data", str(folder / "input.json"), "--request-count", str(NUM_REQUESTS)),
        *("--profile-export-file", str(export)),
        *arguments,
    ]
    done = subprocess.run(
        command, env=environment_with_analyzer(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    exported = export.read_text()
    assert exported, f"{done.stdout}\n{done.stderr}"
    (experiment,) = json.loads(exported)["experiments"]
    return experiment["requests"]


def assert_right(requests: Any, reference: Reference) -> None:
    """Every request was answered with its own prompt's text."""
    assert len(requests) >= NUM_REQUESTS - 1  # those in flight at the end are not exported
    for request in requests:
        text = "".join(part["text_output"] for part in request["response_outputs"])
        assert text == reference.text(request["request_inputs"]["text_input"], 40)


@pytest.mark.parametrize("model", ["demo", "batched"])
def test_http(triton: Triton, reference: Reference, tmp_path: Path, model: str) -> None:
    requests = run(triton, tmp_path, model, max_tokens=[40])

    assert_right(requests, reference)


@pytest.mark.threat("closed-apis-break-clients")
@pytest.mark.parametrize("model", ["demo", "batched"])
def test_grpc_with_a_request_parameter(
    triton: Triton, reference: Reference, tmp_path: Path, model: str
) -> None:
    requests = run(triton, tmp_path, model, *GRPC)

    assert_right(requests, reference)


@pytest.mark.parametrize("model", ["demo_stream", "batched_stream"])
@pytest.mark.parametrize("streaming", [False, True])
def test_grpc_stream_with_a_request_parameter(
    triton: Triton, reference: Reference, tmp_path: Path, model: str, streaming: bool
) -> None:
    arguments = (*GRPC, "--streaming", "--async", "--concurrency-range", "2")
    requests = run(triton, tmp_path, model, *arguments, stream=[streaming])

    assert_right(requests, reference)
    for request in requests:
        assert (len(request["response_timestamps"]) > 1) is streaming
