"""From exports and metrics to a measurement's figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_triton.tritonserver.http_api import Sample, parse_metrics
from perf.load.records import figures as records_figures
from perf.sweep.measuring import ExportError, read_export
from perf.sweep.metrics import Look, machine_figures, server_figures

MS = 1_000_000
Figures = Callable[..., dict[str, Any]]


def request(sent_ms: int, *responses_ms: int, outputs: list[Any] | None = None) -> dict[str, Any]:
    return {
        "timestamp": sent_ms * MS,
        "response_timestamps": [one * MS for one in responses_ms],
        "response_outputs": outputs or [{"num_output_tokens": 2}] * len(responses_ms),
    }


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """Reads an export with two windows of half a second."""

    def read(
        requests: list[dict[str, Any]], *, streams: bool = True, counts_tokens: bool = True
    ) -> dict[str, Any]:
        windows = [0, 500 * MS, 1000 * MS]
        experiment = {"requests": requests, "window_boundaries": windows}
        file = tmp_path / "e.json"
        file.write_text(json.dumps({"experiments": [experiment]}))
        records, (start_ns, end_ns) = read_export(file, streams, counts_tokens)
        return records_figures(records, (end_ns - start_ns) / 1e9)

    return read


def test_a_streams_times_and_tokens(figures: Figures) -> None:
    found = figures([request(0, 100, 150, 250), request(100, 300, 350, 400)])
    assert (found["num_requests"], found["duration_s"], found["requests_per_s"]) == (2, 1.0, 2.0)
    assert found["output_tokens_per_s"] == 12
    assert (found["latency"].mean_ms, found["latency"].p99_ms) == (275, 300)
    assert found["time_to_first_token"].p50_ms == 100
    between = found["inter_token_latency"]
    assert (between.p50_ms, between.p99_ms) == (50, 100)


def test_what_an_empty_last_response_holds_is_not_counted(figures: Figures) -> None:
    """perf_analyzer exports what lies in memory for outputs that were not sent."""
    last = {"text_output": "", "finish_reason": "length", "num_output_tokens": 1}
    garbage = {"text_output": "", "finish_reason": "", "num_output_tokens": 3154116752}
    outputs = [{"text_output": "a", "num_output_tokens": 2}, last, garbage]
    found = figures([request(0, 100, 150, 900, outputs=outputs)])
    assert found["output_tokens_per_s"] == 3
    assert found["latency"].p50_ms == 150


def test_tokens_are_counted_in_flat_json_too(figures: Figures) -> None:
    body = [{"response": json.dumps({"num_output_tokens": 7, "text_output": "x"})}]
    assert figures([request(0, 5, outputs=body)], streams=False)["output_tokens_per_s"] == 7


@pytest.mark.parametrize("text", ["", "{", '{"experiments": []}', '{"experiments": [{}]}'])
def test_an_export_that_is_not_whole_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.json").write_text(text)
    with pytest.raises(ExportError):
        read_export(tmp_path / "e.json", False, False)


ENGINES = {
    "hf_triton_queue_time_seconds_sum": (1, 2),
    "hf_triton_queue_time_seconds_count": (10, 20),
    "hf_triton_batch_size_sum": (100, 340),
    "hf_triton_batch_size_count": (50, 110),
}
TRITONS = {
    "nv_inference_count": (16, 32),
    "nv_inference_exec_count": (2, 4),
    "nv_inference_request_duration_us": (4000, 8000),
    "nv_inference_queue_duration_us": (1000, 2000),
}


@pytest.mark.parametrize(
    "counters, expected",
    [
        (
            {**TRITONS, **ENGINES},
            {"queue_share": 0.25, "batch_occupancy": 4},
        ),
        (TRITONS, {"queue_share": 0.25, "batch_occupancy": 8}),
        ({name: numbers[::-1] for name, numbers in TRITONS.items()}, {}),  # started again
    ],
)
def test_an_engines_own_times_come_before_tritons(
    counters: dict[str, tuple[int, int]], expected: dict[str, float]
) -> None:
    def seen(at: int) -> Look:
        other = 'nv_inference_request_duration_us{model="other"} 7'
        own = (f'{one}{{model="m",version="1"}} {value[at]}' for one, value in counters.items())
        return Look(at, samples=parse_metrics("\n".join(["# TYPE a gauge", *own, other])))

    assert server_figures(seen(0), seen(1), ["m"], latency_ms=400.0) == expected


def test_a_machines_use_is_what_grew_between_two_looks() -> None:
    gpus = [Sample("nv_gpu_memory_used_bytes", {}, 2.0**30)] * 2
    found = machine_figures(Look(1.0, 5.0), Look(3.0, 6.0, 4.0, 0.3, gpus))
    expected = {"cpu_share": 0.3, "server_cpu_cores": 0.5, "memory_gib": 4, "gpu_memory_gib": 2}
    assert found == expected
