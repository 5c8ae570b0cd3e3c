"""From exports and metrics to a measurement's figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.load.records import figures as records_figures
from perf.sweep.measuring import ExportError, read_export
from perf.sweep.metrics import (
    Difference,
    Look,
    between,
    machine_figures,
    parse_metrics,
    server_figures,
)

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
    """Of an export with two windows of half a second."""

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


def test_an_engines_own_times_come_before_tritons() -> None:
    labels = 'model="demo",version="1"'
    before = f"""\
# TYPE hf_triton_queue_time_seconds_sum counter
hf_triton_queue_time_seconds_sum{{{labels}}} 1
hf_triton_queue_time_seconds_count{{{labels}}} 10
hf_triton_batch_size_sum{{{labels}}} 100
hf_triton_batch_size_count{{{labels}}} 50
# TYPE hf_triton_kv_tokens gauge
hf_triton_kv_tokens{{{labels}}} 200
# TYPE hf_triton_kv_tokens_used gauge
hf_triton_kv_tokens_used{{{labels}}} 0
nv_inference_request_duration_us{{model="other"}} 7
"""
    after = before.replace("_sum{" + labels + "} 1\n", "_sum{" + labels + "} 2\n")
    after = after.replace("} 10\n", "} 20\n").replace("_used{" + labels + "} 0", "_used{x} 0")
    after = after.replace("} 100\n", "} 340\n").replace("} 50\n", "} 110\n")
    after = after.replace("_used{x} 0", "_used{" + labels + "} 100")
    seen = Difference([parse_metrics(before), parse_metrics(after)], ["demo"])
    found = server_figures(seen, latency_ms=400.0)
    assert found["queue_ms"] == 100
    assert found["queue_share"] == 0.25
    assert found["compute_ms"] == 300
    assert found["batch_occupancy"] == 4
    assert (found["kv_cache_share"], found["kv_cache_share_max"]) == (0.25, 0.5)


def test_tritons_own_counters_tell_of_models_that_have_none() -> None:
    def text(scale: int) -> str:
        values = {
            "request_success": 4, "count": 16, "exec_count": 2, "request_duration_us": 4000,
            "queue_duration_us": 1000, "compute_input_duration_us": 500,
            "compute_infer_duration_us": 2000, "compute_output_duration_us": 500,
        }  # fmt: skip
        return "\n".join(
            f'nv_inference_{name}{{model="m"}} {value * scale}' for name, value in values.items()
        )

    seen = Difference([parse_metrics(text(1)), parse_metrics(text(2))], ["m"])
    found = server_figures(seen, None)
    assert found["queue_share"] == 0.25
    assert (found["queue_ms"], found["compute_ms"]) == (0.25, 0.75)
    assert found["batch_occupancy"] == 8


def test_a_server_that_was_started_again_counts_nothing_below_zero() -> None:
    line = 'nv_inference_request_success{model="m"} '
    seen = Difference([parse_metrics(f"{line}9"), parse_metrics(f"{line}2")], ["m"])
    assert seen.grown("nv_inference_request_success") == 0


def test_a_machines_use_is_what_grew_in_the_counted_time() -> None:
    looks = [
        Look(0, 0.0, 0.0, 1.0),
        Look(10**9, 0.9, 5.0, 2.0),
        Look(3 * 10**9, 0.3, 6.0, 4.0),
        Look(9 * 10**9, 0.8, 99.0, 9.0),
    ]
    found = machine_figures(between(looks, int(1.5e9), int(2.5e9)))
    assert (found["cpu_share"], found["server_cpu_cores"]) == (0.3, 0.5)
    assert (found["memory_gib"], found["memory_gib_max"]) == (3.0, 4.0)
