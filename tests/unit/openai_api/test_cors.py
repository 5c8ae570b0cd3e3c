"""Pages of other origins at the OpenAI port, as browsers ask: first whether they may, then."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from hf_triton.ports.settings import Access
from tests.unit.openai_api.conftest import Starter

PAGE = "https://chat.example.com"
# What the SDKs of OpenAI and Anthropic send from a page.
WANTED = "authorization,content-type,x-api-key,anthropic-version,x-stainless-lang,x-request-id"


def ask(url: str, method: str, **headers: str) -> tuple[int, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, None, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as found:
            return found.status, dict(found.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models"])
@pytest.mark.parametrize("cors", [(PAGE,), ("*",)])
def test_a_page_asks_with_its_key_and_reads_what_it_is_told(
    cors: tuple[str, ...], path: str, starter: Starter
) -> None:
    fake, port = starter.triton()
    api = starter.translator(fake, f"127.0.0.1:{port}", key="the-key", access=Access(cors=cors))
    method = "GET" if path == "/v1/models" else "POST"
    preflight = {"Access_Control_Request_Method": method, "Access_Control_Request_Headers": WANTED}
    status, headers = ask(api.url + path, "OPTIONS", Origin=PAGE, **preflight)
    assert status == 204, "a browser sends no key with it"
    assert headers["Access-Control-Allow-Origin"] in (PAGE, "*")
    assert headers["Access-Control-Allow-Headers"] == WANTED
    assert method in headers["Access-Control-Allow-Methods"]
    for key, expected in (("the-key", 200), ("another", 401)):
        status, headers = ask(f"{api.url}/v1/models", "GET", Origin=PAGE, x_api_key=key)
        assert status == expected
        assert headers["Access-Control-Allow-Origin"] in (PAGE, "*")
        assert "X-Request-Id" in headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize("cors, told", [((PAGE,), "Origin"), (("*",), None), ((), None)])
def test_caches_are_told_that_answers_depend_on_the_origin(
    cors: tuple[str, ...], told: str | None, starter: Starter
) -> None:
    fake, port = starter.triton()
    api = starter.translator(fake, f"127.0.0.1:{port}", access=Access(cors=cors))
    status, headers = ask(f"{api.url}/v1/models", "OPTIONS", Origin="https://evil.example.com")
    assert (status == 405) is ("*" not in cors)
    assert ("Access-Control-Allow-Origin" in headers) is ("*" in cors)
    for path in ("/v1/models", "/nowhere"):
        for origin in ({}, {"Origin": PAGE}, {"Origin": "https://evil.example.com"}):
            assert ask(api.url + path, "GET", **origin)[1].get("Vary") == told
