"""What a traced request shows of the inside of a real model, under its caller's trace."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.support.served import Served, started
from tests.support.tested_server import skip_without_tracing
from tests.support.triton import DEMO_MODEL, eventually, free_ports
from tests.system.observability.collector import Collector, Span

PROMPT, ANSWER = "I am going", " to the forest"
MODELS = f"""
models:
  - {{name: demo, task: text-generation, model: {DEMO_MODEL}, hooks: hooks.py}}
  - {{name: vectors, task: feature-extraction, model: {DEMO_MODEL.parent / "embedding"}}}
"""
HOOKS = "def preprocess(request):\n    pass\n\n\ndef postprocess(response):\n    pass\n"
GENERATING = {"preprocess", "queue", "prefill", "decode", "postprocess"}
_numbers = count(1)


@dataclass(frozen=True)
class Traced:
    """A server that traces the requests that have a traceparent."""

    served: Served
    collector: Collector

    def post(self, port: int | None, path: str, headers: dict[str, str], **body: object) -> str:
        url = f"http://{self.served.listen.address(port or 0)}{path}"
        headers = {"Content-Type": "application/json", **headers}
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=180) as response:
            return str(response.read().decode())

    def spans(self, ask: Callable[[dict[str, str]], str], operation: str) -> dict[str, Span]:
        """By name, of a request that is sent until its trace has come whole: 24.10 loses one now
        and then.
        """
        for _ in range(5):
            trace_id = f"{next(_numbers):032x}"
            answer = ask({"traceparent": f"00-{trace_id}-00000000000000ab-01"})
            found: dict[str, Span] = {}

            def is_whole(trace_id: str = trace_id, found: dict[str, Span] = found) -> bool:
                found.update((span.name, span) for span in self.collector.trace(trace_id))
                return {"InferRequest", operation} <= {*found}

            if eventually(is_whole, 30):
                assert found["InferRequest"].parent_id == "00000000000000ab"
                ids = {span.span_id for span in found.values()}
                assert all(s.parent_id in ids for s in found.values() if s.name != "InferRequest")
                told = json.dumps([span.attributes for span in found.values()])
                assert answer
                assert PROMPT not in told
                assert ANSWER not in told
                return found
        raise AssertionError(f"no trace came whole: {self.collector.spans}\n{self.served.err}")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    skip_without_tracing()
    folder = tmp_path_factory.mktemp("spans")
    (folder / "hooks.py").write_text(HOOKS)
    listen = replace(free_ports(), openai_port=free_ports().http_port)
    environment = {"OTEL_BSP_SCHEDULE_DELAY": "200", "OMP_NUM_THREADS": "1"}
    with Collector().running() as collector:
        settings = f"server: {{tracing: {{url: {collector.url}, rate: 0, service_name: tests}}}}"
        (folder / "models.yaml").write_text(f"{settings}\n{MODELS}")
        with started(folder, ("hf_triton.cli",), (), listen, environment) as served:
            assert eventually(lambda: "Ctrl-C stops" in served.err, 600), served.err
            yield Traced(served, collector)


def over_http(traced: Traced, headers: dict[str, str]) -> str:
    path, port = "/v2/models/demo/generate", traced.served.listen.http_port
    return traced.post(port, path, headers, text_input=PROMPT, max_tokens=8)


def over_grpc(traced: Traced, headers: dict[str, str]) -> str:
    text = grpc_client.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(np.array([PROMPT.encode()], dtype=np.object_))
    listen, options = traced.served.listen, {"max_tokens": 8}
    with grpc_client.InferenceServerClient(listen.address(listen.grpc_port)) as client:
        found = client.infer("demo", [text], headers=headers, parameters=options)
    return str(found.as_numpy("text_output"))


def over_openai(traced: Traced, headers: dict[str, str]) -> str:
    messages = [{"role": "user", "content": PROMPT}]
    path, port = "/v1/chat/completions", traced.served.listen.openai_port
    return traced.post(port, path, headers, model="demo", messages=messages, max_tokens=8)


@pytest.mark.threat("texts-in-logs")
@pytest.mark.parametrize(
    "ask, operation, triton_model",
    [
        (over_http, "text_completion", "demo"),
        (over_grpc, "text_completion", "demo"),
        (over_openai, "chat", "demo_stream"),
    ],
)
def test_a_trace_goes_on_inside_the_model(
    traced: Traced,
    ask: Callable[[Traced, dict[str, str]], str],
    operation: str,
    triton_model: str,
) -> None:
    spans = traced.spans(partial(ask, traced), f"{operation} demo")
    whole = spans[f"{operation} demo"]
    assert whole.parent_id == spans[triton_model].span_id
    assert {name for name, one in spans.items() if one.parent_id == whole.span_id} == GENERATING
    told = whole.attributes
    assert told["service.name"] == "tests"
    assert told["gen_ai.operation.name"] == operation
    assert told["gen_ai.request.model"] == "demo"
    assert told["gen_ai.request.max_tokens"] == "8"
    assert 1 <= int(told["gen_ai.usage.output_tokens"]) <= 8
    assert int(told["gen_ai.usage.input_tokens"]) >= 3
    assert len(told["gen_ai.response.finish_reasons"]["values"]) == 1


def test_an_encoders_trace_has_its_queue_and_its_computing(traced: Traced) -> None:
    def embed(headers: dict[str, str]) -> str:
        path, port = "/v2/models/vectors/generate", traced.served.listen.http_port
        return traced.post(port, path, headers, text_input=PROMPT)

    spans = traced.spans(embed, "embeddings vectors")
    whole = spans["embeddings vectors"]
    assert whole.parent_id == spans["vectors"].span_id
    assert spans["queue"].parent_id == whole.span_id
    assert int(whole.attributes["gen_ai.usage.input_tokens"]) >= 3
