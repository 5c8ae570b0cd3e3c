"""X-Request-Id: taken from the client, given to Triton, on every answer and in the log; and the
client's trace.
"""

from __future__ import annotations

from typing import Any

import pytest

from hf_triton.ports.openai.triton.client import Triton
from tests.unit.openai_api.conftest import Translator


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["echo", "whole"])
def test_the_clients_request_id_is_tritons_and_comes_back(
    stream: bool, model: str, api: Translator
) -> None:
    api.headers = {"X-Request-Id": "mine-7"}
    reply = api.completion(model=model, stream=stream)
    assert reply.headers["X-Request-Id"] == "mine-7"
    assert api.triton.ids == ["mine-7"]
    api.post("/v1/embeddings", model="vectors", input="a b")
    assert api.triton.ids == ["mine-7"] * 2
    body = reply.events[0] if stream else reply.body
    assert body["id"].startswith("cmpl-")


@pytest.mark.threat("forged-log-lines")
@pytest.mark.parametrize("given", ["two words", "x" * 129, "a]b", 'a"b', "caf\xe9"])
def test_an_id_that_no_log_line_can_hold_is_replaced(given: str, api: Translator) -> None:
    api.headers = {"X-Request-Id": given}
    reply = api.completion()
    assert reply.headers["X-Request-Id"] == reply.body["id"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing"])
def test_every_answer_has_a_request_id(path: str, api: Translator) -> None:
    assert api.get(path).headers["X-Request-Id"].startswith("req-")
    api.headers = {"X-Request-Id": "mine-7"}
    assert api.get(path).headers["X-Request-Id"] == "mine-7"


@pytest.mark.parametrize("prompt,status", [("!400", 400), ("!503", 503)])
@pytest.mark.parametrize("model", ["echo", "whole"])
def test_an_errors_id_is_in_its_header_not_in_its_text(
    prompt: str, status: int, model: str, api: Translator
) -> None:
    api.headers = {"X-Request-Id": "mine-7"}
    reply = api.completion(model=model, prompt=prompt)
    assert reply.status == status
    assert reply.headers["X-Request-Id"] == "mine-7"
    assert "mine-7" not in reply.error["message"]


def test_a_bug_of_ours_is_logged_with_the_id(
    api: Translator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a prompt")

    monkeypatch.setattr(Triton, "generate", broken)
    api.headers = {"X-Request-Id": "mine-7"}
    reply = api.completion(prompt="a prompt")
    assert (reply.status, reply.headers["X-Request-Id"]) == (500, "mine-7")
    said = capsys.readouterr().err
    assert said.startswith("hf-triton: [request id: mine-7] the OpenAI API failed at a request: ")
    assert "a prompt" not in said


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("model", ["echo", "whole"])
def test_a_trace_goes_on_in_triton(model: str, api: Translator) -> None:
    api.headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert api.completion(model=model).status == 200
    assert api.post("/v1/embeddings", model="vectors", input="a b").status == 200
    assert api.triton.traces == [PARENT, "vendor=1"] * 2


@pytest.mark.parametrize("header", ["x" * 513, "caf\xe9"])
def test_what_is_no_trace_is_not_passed_on(header: str, api: Translator) -> None:
    api.headers = {"traceparent": header}
    assert api.completion().status == 200
    assert api.triton.traces == []
