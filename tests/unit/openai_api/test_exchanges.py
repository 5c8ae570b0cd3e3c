"""Handles every request's caller, id and trace, and pages of other origins."""

from __future__ import annotations

from typing import Any

import pytest

from generator.models_yaml.server_settings import Limits
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.settings import Access, Caller
from hf_triton.runtime.request.request_parameters import CALL
from tests.unit.openai_api.conftest import Starter, Translator

KEY = "secret-key"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PAGE, EVIL = "https://chat.example.com", "https://evil.example.com"
# Headers that the SDKs of OpenAI and Anthropic send from a page.
WANTED = "authorization,content-type,x-api-key,anthropic-version,x-stainless-lang,x-request-id"


def caller_of(key: str) -> str:
    return Caller("alice", key).alias


def parameters(api: Translator) -> dict[str, str]:
    """Those of the last request for vectors."""
    last = api.triton.encoder_requests[-1]
    return {name: one.string_param for name, one in last.parameters.items() if name != CALL}


def test_a_salt_goes_on_to_the_model(api: Translator) -> None:
    for reply in (api.completion(cache_salt="a salt"), api.chat(cache_salt="a salt")):
        assert reply.status == 200
        assert api.triton.seen[-1]["cache_salt"] == "a salt"
    assert api.completion(prompt=["a", "b"], cache_salt="another").status == 200
    assert {inputs["cache_salt"] for inputs in api.triton.seen[-2:]} == {"another"}
    for absent in ({}, {"cache_salt": None}):
        assert api.completion(**absent).status == 200
        assert "cache_salt" not in api.triton.seen[-1]
    embedded = {"model": "vectors", "input": "a", "cache_salt": "a salt", "user": "ann"}
    assert api.post("/v1/embeddings", **embedded).status == 200
    assert parameters(api) == {"cache_salt": "a salt", "user": "ann"}


@pytest.mark.threat("shared-prefix-timing")
def test_who_has_the_key_is_a_caller_of_his_own(starter: Starter) -> None:
    api = starter.api(key=KEY)
    api.headers = {"Authorization": f"Bearer {KEY}"}
    for reply in (api.completion(), api.completion(stream=True), api.chat(cache_salt="a salt")):
        assert reply.status == 200
        assert api.triton.seen[-1]["hf-triton-caller"] == caller_of(KEY)
    assert api.post("/v1/embeddings", model="vectors", input="a").status == 200
    assert parameters(api) == {"hf-triton-caller": caller_of(KEY)}


def test_nobody_names_another_caller(api: Translator) -> None:
    assert api.completion(**{"hf-triton-caller": caller_of(KEY)}).status == 200
    assert "hf-triton-caller" not in api.triton.seen[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["echo", "whole"])
def test_the_clients_id_and_trace_are_tritons_and_the_id_comes_back(
    stream: bool, model: str, api: Translator
) -> None:
    api.headers = {"X-Request-Id": "mine-7", "traceparent": PARENT, "tracestate": "vendor=1"}
    reply = api.completion(model=model, stream=stream)
    assert reply.headers["X-Request-Id"] == "mine-7"
    assert (reply.events[0] if stream else reply.body)["id"].startswith("cmpl-")
    api.post("/v1/embeddings", model="vectors", input="a b")
    assert api.triton.ids == ["mine-7"] * 2
    assert api.triton.traces == [PARENT, "vendor=1"] * 2
    for prompt, status in (("!400", 400), ("!503", 503)):
        reply = api.completion(model=model, prompt=prompt)
        assert (reply.status, reply.headers["X-Request-Id"]) == (status, "mine-7")
        assert "mine-7" not in reply.error["message"]


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


def test_answers_tell_what_is_left_of_the_callers_minute(starter: Starter) -> None:
    api = starter.api(access=Access(limits=Limits(requests_per_minute=3, tokens_per_minute=500)))
    left, begin = [], "x-ratelimit-"
    for asked in ({}, {"stream": True}, {"prompt": "!400"}, {}):
        reply = api.completion(**asked)
        told = {n.removeprefix(begin): v for n, v in reply.headers.items() if n.startswith(begin)}
        assert told.pop("limit-requests") == "3"
        assert (told.pop("limit-tokens"), told.pop("remaining-tokens")) == ("500", "500")
        left.append((reply.status, told.pop("remaining-requests")))
        assert 0 < float(told.pop("reset-requests").removesuffix("s")) <= 60
        assert told == {"reset-tokens": "0.000s"}
    assert left == [(200, "2"), (200, "1"), (400, "0"), (429, "0")]
    assert reply.error["code"] == "rate_limit_exceeded"
    assert "got more than 3 requests in a minute" in reply.error["message"]
    assert 0 < int(reply.headers["Retry-After"]) <= 20


@pytest.mark.parametrize("header", ["x" * 513, "caf\xe9"])
def test_what_is_no_trace_is_not_passed_on(header: str, api: Translator) -> None:
    api.headers = {"traceparent": header}
    assert api.completion().status == 200
    assert api.triton.traces == []


def asked(api: Translator, method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    api.headers = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = api.send(method, path)
    return reply.status, reply.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models"])
@pytest.mark.parametrize("cors", [(PAGE,), ("*",)])
def test_a_page_asks_with_its_key_and_reads_what_it_is_told(
    cors: tuple[str, ...], path: str, starter: Starter
) -> None:
    api = starter.api(key="the-key", access=Access(cors=cors))
    method = "GET" if path == "/v1/models" else "POST"
    preflight = {"Access_Control_Request_Method": method, "Access_Control_Request_Headers": WANTED}
    status, headers = asked(api, "OPTIONS", path, Origin=PAGE, **preflight)
    assert status == 204, "a browser sends no key with it"
    assert headers["Access-Control-Allow-Origin"] in (PAGE, "*")
    assert headers["Access-Control-Allow-Headers"] == WANTED
    assert method in headers["Access-Control-Allow-Methods"]
    for key, expected in (("the-key", 200), ("another", 401)):
        status, headers = asked(api, "GET", "/v1/models", Origin=PAGE, x_api_key=key)
        assert status == expected
        assert headers["Access-Control-Allow-Origin"] in (PAGE, "*")
        assert headers["Access-Control-Expose-Headers"] == "*"


@pytest.mark.parametrize("cors, told", [((PAGE,), "Origin"), (("*",), None), ((), None)])
def test_caches_are_told_that_answers_depend_on_the_origin(
    cors: tuple[str, ...], told: str | None, starter: Starter
) -> None:
    api = starter.api(access=Access(cors=cors))
    status, headers = asked(api, "OPTIONS", "/v1/models", Origin=EVIL)
    assert (status == 405) is ("*" not in cors)
    assert ("Access-Control-Allow-Origin" in headers) is ("*" in cors)
    for path in ("/v1/models", "/nowhere"):
        for origin in ({}, {"Origin": PAGE}, {"Origin": EVIL}):
            assert asked(api, "GET", path, **origin)[1].get("Vary") == told
