"""The spans of one request, as an exporter gets them; no server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.request_parameters import CALL, VARIABLE, call_in
from hf_triton.tracing import triton
from hf_triton.tracing.trace import Trace, timed
from hf_triton.tracing.tracer import Tracer

PARENT = f"00-{7:032x}-{9:016x}-01"
URL = "http://127.0.0.1:9/v1/traces"


class Sequences:
    """A request's, submitted ten seconds ago, and a tracer whose spans stay here."""

    def __init__(self, task: str = "text-generation") -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer("tiny", task, "tests", self.exporter)
        self.began_s = time.monotonic() - 10

    def one(self, finish_reason: str = "stop", **times: float | None) -> Any:
        params = SimpleNamespace(
            **dict.fromkeys(("max_tokens", "top_k"), 5),
            **dict.fromkeys(("temperature", "top_p"), 0.5),
            stop_words=("secret",),
        )
        ages = {"submitted_s": 0.0, "started_s": 1.0, "first_token_s": 3.0, **times}
        at_s = {name: None if age is None else self.began_s + age for name, age in ages.items()}
        return SimpleNamespace(params=params, finish_reason=finish_reason, **at_s)

    def sent(
        self, trace: Trace, error: Exception | None = None, **more: bool
    ) -> dict[str, ReadableSpan]:
        self.tracer.send(trace, error, **more)
        self.tracer.close()
        return {span.name: span for span in self.exporter.get_finished_spans()}


def lasted_s(span: ReadableSpan) -> float:
    assert span.start_time
    assert span.end_time
    return (span.end_time - span.start_time) / 1e9


def test_a_generation_waits_then_reads_its_prompt_then_writes() -> None:
    made, trace = Sequences(), Trace(PARENT)
    trace.use(prompt_tokens=3, generated_tokens=8)
    trace.generated([made.one(), made.one("length", started_s=2.0)])
    spans = made.sent(trace, is_chat=True)
    whole = spans["chat tiny"]
    assert whole.context
    assert whole.parent
    assert (whole.context.trace_id, whole.parent.span_id) == (7, 9)
    assert whole.resource.attributes["service.name"] == "tests"
    assert dict(whole.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "hf_triton",
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 8,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.top_k": 5,
        "gen_ai.response.finish_reasons": ["stop", "length"],
    }
    inner = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(one.parent == whole.context and not one.attributes for one in inner)
    assert [lasted_s(one) for one in inner] == pytest.approx([1.0, 2.0, 7.0], abs=0.5)
    assert [one.end_time for one in inner[:2]] == pytest.approx(
        [one.start_time for one in inner[1:]]
    )


@pytest.mark.parametrize(
    "times, names",
    [
        ({"started_s": None, "first_token_s": None}, ["queue"]),
        ({"first_token_s": None}, ["queue", "prefill"]),
        # A stream that another process has begun has its first token already.
        ({"started_s": 5.0, "first_token_s": 0.0}, ["queue", "prefill", "decode"]),
    ],
)
def test_a_stage_that_did_not_begin_has_no_span(
    times: dict[str, float | None], names: list[str]
) -> None:
    made, trace = Sequences(), Trace(PARENT)
    trace.generated([made.one("stop", **times)])
    spans = made.sent(trace)
    assert [*spans] == [*names, "text_completion tiny"]
    assert all(lasted_s(span) >= 0 for span in spans.values())


@pytest.mark.threat("texts-in-logs")
def test_an_error_is_told_by_its_kind_alone() -> None:
    made, trace = Sequences("fill-mask"), Trace(PARENT)
    with pytest.raises(RequestError), timed(trace, "preprocess"):
        raise RequestError("secret")
    trace.generated([])
    spans = made.sent(trace, RequestError("secret"))
    whole = spans["fill-mask tiny"]
    assert [*spans] == ["preprocess", "fill-mask tiny"]
    assert whole.status.status_code is StatusCode.ERROR
    assert (whole.attributes or {})["error.type"] == "INVALID_ARG"
    assert "secret" not in "".join(span.to_json() for span in spans.values())


def test_a_long_stream_does_not_have_a_span_for_each_of_its_hooks() -> None:
    trace = Trace(PARENT)
    for _ in range(1000):
        with timed(trace, "postprocess"):
            pass
    assert len(trace.spans) == 128


def test_a_front_passes_the_trace_on_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/dev/shm/left_")
    arrived = call_in(json.dumps({CALL: "0" * 32}), PARENT)
    written = Request({}, {}, SimpleNamespace(), call=arrived).written_parameters()
    call = call_in(written)
    assert call
    assert call.trace
    assert call.trace.traceparent == PARENT
    assert call.left_file == f"/dev/shm/left_{'0' * 32}"


def traced_request(context: str | None) -> Any:
    return SimpleNamespace(trace=lambda: SimpleNamespace(get_context=lambda: context))


class TestServer:
    """A parent process with the command line of a tritonserver that traces."""

    @pytest.fixture(autouse=True)
    def server(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        flags = [f"opentelemetry,url={URL}", "opentelemetry,resource=service.name=tests"]
        command = [
            sys.executable,
            "-c",
            "print(); input()",
            *(f"--trace-config={one}" for one in flags),
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
            assert process.stdout
            process.stdout.readline()  # its command line is there by now
            monkeypatch.setattr(os, "getppid", lambda: process.pid)
            triton.collector.cache_clear()
            yield
            process.kill()
        triton.collector.cache_clear()

    @pytest.mark.parametrize(
        "context, place",
        [
            (json.dumps({"traceparent": PARENT, "tracestate": ""}), PARENT),
            (json.dumps({"traceparent": f"{PARENT[:-1]}0"}), ""),  # its caller does not want one
            ("{}", ""),
            (None, ""),
        ],
    )
    def test_a_request_is_traced_where_triton_traces_it(
        self, context: str | None, place: str
    ) -> None:
        assert triton.traceparent_of(traced_request(context)) == place

    def test_spans_go_where_triton_sends_its_own(self) -> None:
        assert triton.collector() == (URL, "tests")
        tracer = triton.start_tracer("tiny", "fill-mask", pytest.fail)
        assert tracer is not None
        tracer.close()

    def test_without_the_sdk_models_serve_and_say_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "hf_triton.tracing.tracer", None)
        warnings: list[str] = []
        assert triton.start_tracer("tiny", "fill-mask", warnings.append) is None
        assert "PATH[tracing]" in warnings[0]


def test_nothing_is_asked_where_triton_does_not_trace() -> None:
    triton.collector.cache_clear()
    assert triton.traceparent_of(None) == ""
    assert triton.start_tracer("tiny", "fill-mask", pytest.fail) is None
