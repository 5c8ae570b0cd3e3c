"""Streams that a port sends again, with what their caller has: a stub answers one twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_triton.ports.call_files import Stream
from hf_triton.ports.callers import CallName
from hf_triton.runtime.request.request_parameters import CALL, VARIABLE, call_text
from tests.scenarios.stub_endpoint import StubEndpoint

Events = list[dict[str, Any]]
DRAWN: dict[str, Any] = {"temperature": 1.3}
SCHEMA = {"type": "array", "items": {"enum": ["a", "bc"]}, "minItems": 6}
WAYS: list[dict[str, Any]] = [
    DRAWN,  # by a seed that only the first process knows
    {**DRAWN, "n": 2, "return_cumulative_logprob": True},
    {**DRAWN, "json_schema": json.dumps(SCHEMA)},
    {"stop_words": ["zebra"], "return_token_ids": True, "return_num_input_tokens": True},
]


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/left_")
    return Stream(f"{tmp_path}/left_", CallName())


def ask(stub: StubEndpoint, model: str, stream: Stream, /, **asked: Any) -> tuple[int, Events]:
    call = call_text(CallName(), stream.num_responses, 0.0, stream.name)
    fields = {"text_input": "Once", "max_tokens": 24, "stream": True, CALL: call}
    return stub.generate_stream(model, {**fields, **asked})


@pytest.mark.parametrize("way", WAYS)
def test_the_rest_is_what_it_would_have_been(
    stub: StubEndpoint, stream: Stream, way: dict[str, Any]
) -> None:
    status, whole = ask(stub, "demo_stream", stream, **way)
    assert status == 200
    for stream.num_responses in (len(whole) // 2, 1):
        status, rest = ask(stub, "demo_stream", stream, **way)
        assert (status, joined(rest)) == (200, joined(whole[stream.num_responses :]))
        assert sums(rest) == pytest.approx(sums(whole), abs=1e-3)
    stream.num_responses = 1 + len(rest)
    _, (last,) = ask(stub, "demo_stream", stream, **way)  # its caller has all but the end
    assert not any(last["text_output"])


def joined(events: Events) -> list[object]:
    """Joins a stream's pieces, which depend on the reader's speed."""
    texts = [event["text_output"] for event in events]
    rows = [text if isinstance(text, list) else [text] for text in texts]
    ids = [token_id for event in events for token_id in json.loads(event.get("token_ids", "[]"))]
    last = events[-1]
    told = [last.get(name) for name in ("finish_reason", "num_input_tokens")]
    return [list(map("".join, zip(*rows, strict=True))), ids, *told]


def sums(events: Events) -> list[float]:
    found: list[float] = events[-1].get("cumulative_logprob", [])
    return found


def test_a_time_limit_goes_on_counting(stub: StubEndpoint, stream: Stream) -> None:
    call = call_text(CallName(), 0, 100.0, stream.name)
    asked = {"timeout_ms": 99_000, "return_finish_reason": True, CALL: call}
    _, (event,) = ask(stub, "demo_stream", stream, **asked)
    assert (event["text_output"], event["finish_reason"]) == ("", "timeout")


def test_an_engine_that_can_not_go_on_says_so(stub: StubEndpoint, stream: Stream) -> None:
    asked = {"text_input": ["Once"], "max_tokens": [4], "stream": [True]}
    assert ask(stub, "padded_stream", stream, **asked)[0] == 200
    assert not stream.goes_on
    stream.num_responses = 1
    status, (event,) = ask(stub, "padded_stream", stream, **asked)
    assert "this stream can't go on in another" in event["error"], status
