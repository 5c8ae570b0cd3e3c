"""Two lines of models.yaml, and every request's trace is at the collector."""

from __future__ import annotations

import itertools
import json
import queue
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.support.served import Served, serve
from tests.support.tested_server import skip_without_tracing
from tests.support.triton import eventually, free_ports
from tests.system.observability.collector import Collector, Span

MODELS = "- {name: plain}\n- {name: flowing, streaming: true}"
_numbers = itertools.count(1)
_NUM_SPANS = 3  # the frontend's, the model's, its computing


@pytest.fixture(scope="module", autouse=True)
def has_tracing() -> None:
    skip_without_tracing()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


@pytest.fixture(scope="module")
def served(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Traces only what has a trace context, so that each test finds its own."""
    folder = tmp_path_factory.mktemp("tracing")
    settings = f"{{tracing: {{url: {collector.url}, rate: 0, service_name: tests}}}}"
    environment = {
        "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-key=secret-of-the-collector",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
    }
    with serve(folder, MODELS, settings=settings, environment=environment) as running:
        running.wait_for("Ctrl-C stops")
        yield running


def traceparent(number: int) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-00000000000000ab-01"}


def post(served: Served, path: str, number: int, **body: object) -> None:
    url = f"http://127.0.0.1:{served.listen.http_port}/v2/models/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), traceparent(number))
    with urllib.request.urlopen(request, timeout=180) as response:
        response.read()


def text_input() -> Any:
    tensor = grpc_client.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"a prompt"], dtype=np.object_))
    return tensor


def traced(served: Served, collector: Collector, ask: Callable[[int], None]) -> dict[str, Span]:
    """The spans, by their names, of what ``ask`` sends in the trace of a number.

    24.10 loses a trace now and then where the cores are busy: one of five is enough, and it may
    come late.
    """
    asked: list[str] = []

    def whole() -> list[list[Span]]:
        return [spans for spans in map(collector.trace, asked) if len(spans) == _NUM_SPANS]

    for number in itertools.islice(_numbers, 5):
        ask(number)
        asked.append(f"{number:032x}")
        if eventually(lambda: bool(whole()), 10 if len(asked) < 5 else 60):
            return {span.name: span for span in whole()[0]}
    raise AssertionError(f"no trace came whole: {collector.spans}\n{served.err}")


def assert_traced(spans: dict[str, Span], model: str, request_id: str) -> None:
    """The caller's trace goes on in the server, and in the model that answered."""
    assert set(spans) == {"InferRequest", model, "compute"}
    assert spans["InferRequest"].parent_id == "00000000000000ab"
    assert spans[model].parent_id == spans["InferRequest"].span_id
    attributes = spans[model].attributes
    assert attributes["triton.model_name"] == model
    assert attributes["service.name"] == "tests"
    assert attributes.get("triton.request_id", "") == request_id
    assert "a prompt" not in json.dumps(attributes)


def generate(served: Served, number: int) -> None:
    post(served, "plain/generate", number, text_input="a prompt", id="r-1")


def infer(served: Served, number: int) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a prompt"]}
    post(served, "plain/infer", number, inputs=[tensor])


def generate_stream(served: Served, number: int) -> None:
    post(served, "flowing_stream/generate_stream", number, text_input="a prompt", id="r-3")


def over_grpc(served: Served, number: int) -> None:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}") as client:
        client.infer("plain", [text_input()], request_id="r-4", headers=traceparent(number))


def over_grpc_stream(served: Served, number: int) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(f"127.0.0.1:{served.listen.grpc_port}") as client:
        client.start_stream(
            lambda result, error: answers.put((result, error)), headers=traceparent(number)
        )
        client.async_stream_infer("flowing_stream", [text_input()], request_id="r-5")
        assert answers.get(timeout=180)[1] is None
        client.stop_stream()  # with it the trace is complete


@pytest.mark.threat("texts-in-logs")
@pytest.mark.parametrize(
    "ask, model, request_id",
    [
        (generate, "plain", "r-1"),
        (infer, "plain", ""),
        (generate_stream, "flowing_stream", "r-3"),
        (over_grpc, "plain", "r-4"),
        (over_grpc_stream, "flowing_stream", "r-5"),
    ],
)
def test_a_requests_trace_goes_on_in_the_server(
    served: Served,
    collector: Collector,
    ask: Callable[[Served, int], None],
    model: str,
    request_id: str,
) -> None:
    assert_traced(traced(served, collector, partial(ask, served)), model, request_id)


@pytest.mark.threat("trace-collector-key")
def test_the_collectors_own_key_comes_from_the_environment(
    served: Served, collector: Collector
) -> None:
    traced(served, collector, partial(post, served, "plain/generate", text_input="a prompt"))
    assert collector.headers[-1]["x-collector-key"] == "secret-of-the-collector"
    assert "secret-of-the-collector" not in served.err


def test_requests_without_a_context_are_not_traced_at_rate_0(
    served: Served, collector: Collector
) -> None:
    assert served.generate("plain", "a prompt").status == 200
    # A later span is there, so an earlier one would be too.
    traced(served, collector, partial(post, served, "plain/generate", text_input="a prompt"))
    assert all(int(span.trace_id, 16) < next(_numbers) for span in collector.spans)


def test_by_default_every_request_is_traced_and_a_lost_collector_loses_none(
    tmp_path: Path,
) -> None:
    port = free_ports().http_port
    settings = f"{{tracing: {{url: http://127.0.0.1:{port}/v1/traces}}}}"
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    with serve(tmp_path, MODELS, settings=settings, environment=environment) as running:
        running.wait_for("Ctrl-C stops")

        def is_answered() -> bool:
            return running.generate("plain", "a prompt").status == 200

        began_s = time.monotonic()
        # Triton's complaints come once there are some kilobytes of them.
        assert eventually(lambda: is_answered() and "OTLP HTTP Client" in running.err)
        with Collector(port).running() as collector:
            # Asked again and again: 24.10 loses a trace now and then.
            assert eventually(lambda: is_answered() and len(collector.spans) >= _NUM_SPANS)
        assert all(is_answered() for _ in range(20))
        running.signal(signal.SIGTERM)
        assert running.exit_code() == 0
        num_minutes = 1 + int((time.monotonic() - began_s) / 60)
        assert 1 <= running.err.count("OTLP HTTP Client") <= num_minutes, "a line in a minute"
