"""Errors in OpenAI's format, models that come and go, the key, and a Triton that is away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from generator.repository.writing import locked_model
from hf_triton.ports.openai.triton.catalog import Catalog
from hf_triton.ports.openai.triton.client import of_text
from hf_triton.ports.retries import Model as Told
from hf_triton.tritonserver.model_state import State
from tests.support.triton import eventually, free_ports
from tests.unit.openai_api.conftest import Reply, Starter, Translator
from tests.unit.openai_api.fake_triton import Model

LOADING = Told(state=State.LOADING, reason="is being loaded", waits_for="is being loaded")


@pytest.mark.parametrize("name", ["nobody", "echo_stream", "stranger"])
def test_an_unknown_model_is_a_404_that_names_the_known(name: str, api: Translator) -> None:
    for reply, known in (
        (
            api.get(f"/v1/models/{name}"),
            "labels, pair_rows, pairs, rows, translator, vectors, whole",
        ),
        (api.completion(model=name), "batched, echo, translator, whole"),
    ):
        assert reply.status == 404
        assert (reply.error["param"], reply.error["code"]) == ("model", "model_not_found")
        assert known in reply.error["message"]


def test_a_translator_completes_and_does_not_chat(api: Translator) -> None:
    assert api.completion(model="translator").body["choices"][0]["text"] == "a b c"
    reply = api.chat(model="translator")
    assert reply.status == 404
    assert "'translator' is a text2text-generation model" in reply.error["message"]
    assert "audio-text-to-text): batched, echo, whole" in reply.error["message"]


def test_models_come_and_go(api: Translator) -> None:
    assert api.completion(model="late").status == 404
    api.triton.models["late"] = Model("late", "whole")
    assert eventually(lambda: api.completion(model="late").status == 200)
    del api.triton.models["late"]
    assert eventually(lambda: api.completion(model="late").status == 404)


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_no_longer_streams_is_asked_as_it_is_now(
    api: Translator, stream: bool
) -> None:
    assert api.completion().status == 200, "it has just read the catalog"
    del api.triton.models["echo_stream"]
    api.triton.models["echo"] = Model("echo", "whole")
    reply = api.completion(stream=stream)
    assert (reply.status, "a" in reply.text) == (200, True)


@pytest.mark.parametrize("name,folder", [("whole", "whole"), ("echo", "echo_stream")])
def test_a_model_that_is_loaded_again_is_a_503_meanwhile(
    name: str, folder: str, api: Translator
) -> None:
    gone = api.triton.models.pop(folder)
    api.tell(**{name: LOADING})
    assert eventually(lambda: api.completion(model=name).status == 503)
    reply = api.completion(model=name)
    assert reply.error["message"] == f"model: '{name}' is being loaded; try again"
    assert reply.headers["Retry-After"] == "1"
    assert api.get(f"/v1/models/{name}").status == 503
    assert api.completion(model=f"{name}:adapter").status == 503
    api.triton.models[folder] = gone
    api.tell(**{name: Told()})
    assert api.completion(model=name).status == 200


def test_a_model_that_did_not_load_is_told_with_its_reason(starter: Starter) -> None:
    api = starter.api()
    api.triton.models.pop("whole")

    def told(state: State, reason: str) -> Reply:
        api.tell(whole=Told(state=state, reason=reason, waits_for=reason))
        return api.completion(model="whole")

    reply = told(State.READY, "no file config.json")
    late = told(State.LOADING, "is being loaded")
    stays = told(State.FAILED, "failed to load: no file config.json")
    may_pass = told(State.HEALING, "failed to load: no file; it is loaded again in 4 s")
    assert stays.status == may_pass.status == 503
    assert (stays.headers.get("Retry-After"), stays.headers["x-should-retry"]) == (None, "false")
    assert (may_pass.headers["Retry-After"], may_pass.headers.get("x-should-retry")) == ("1", None)
    assert (reply.status, late.status) == (503, 503)
    assert reply.error["message"] == "model: 'whole' is not ready: no file config.json"
    assert late.error["message"] == "model: 'whole' is being loaded; try again"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_model_that_was_given_up_is_told_with_how_it_comes_back(
    starter: Starter, is_known: bool
) -> None:
    """Triton may have had it when it was last asked for its models, or not."""
    api = starter.api()
    how = "killed by SIGKILL; given up after 6 failed loads in a row; `hf-triton apply` loads it"
    names, given_up = ("echo", "echo_stream", "vectors"), State.GIVEN_UP
    assert api.completion().status == 200
    for name in () if is_known else names:
        api.triton.models.pop(name)
    told = Told(True, failure=how, retry_s=60, reason=how, state=given_up)
    api.tell(**dict.fromkeys(names, told))
    if not is_known:
        assert eventually(lambda: "given up" in api.completion().text)
    for reply in (
        *(api.completion(), api.completion(stream=True), api.chat(), api.chat(stream=True)),
        api.post("/v1/embeddings", model="vectors", input="a"),
    ):
        assert reply.status == 503
        assert how in reply.error["message"]


def test_a_model_that_is_loaded_for_the_first_time_is_a_503(
    starter: Starter, tmp_path: Path
) -> None:
    api = starter.api(repository=tmp_path)
    assert api.completion(model="late").status == 404
    with locked_model(tmp_path / "late"):
        assert api.completion(model="late").status == 503, "an apply adds it"
    api.tell(late=LOADING)
    assert eventually(lambda: api.completion(model="late").status == 503)
    api.tell(late=Told(state=State.ASLEEP))
    assert eventually(lambda: api.completion(model="late").status == 404), "to be loaded by hand"
    assert api.completion(model="labels").status == 404, "is of another task"
    assert api.completion(model="l" * 10_000).status == 404


def test_many_requests_read_the_models_once(
    api: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog.models, "__defaults__", (600.0,))  # instead of two seconds
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(lambda _: api.completion(), range(10)))
    assert api.triton.num_indexed == 1


@pytest.mark.parametrize("model", ["echo", "whole"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_models_error_keeps_its_status(
    status: int, stream: bool, model: str, api: Translator
) -> None:
    reply = api.completion(model=model, prompt=f"!{status}", stream=stream)
    assert reply.status == status
    assert reply.error["type"] == ("invalid_request_error" if status == 400 else "server_error")
    assert reply.error["param"] == ("top_k" if status == 400 else None)
    assert ("Retry-After" in reply.headers) == (status == 503)


def test_one_bad_prompt_fails_the_request(api: Translator) -> None:
    api.triton.num_waiting_at_errors = 1
    assert api.completion(prompt=["a", "!400", "b !waits"]).status == 400
    assert eventually(lambda: api.triton.left == ["b !waits"])


def test_an_error_after_the_first_chunk_is_an_event(api: Translator) -> None:
    reply = api.completion(prompt="a !fails", stream=True)
    assert reply.status == 200
    *_, last = reply.events
    assert last["error"]["type"] == "server_error"
    assert last["error"]["code"] == "unavailable"


@pytest.mark.parametrize(
    "method,path,status",
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models/echo", 405),
    ],
)
def test_other_paths_and_methods(method: str, path: str, status: int, api: Translator) -> None:
    reply = api.send(method, path)
    assert reply.status == status
    assert reply.error["type"] == "invalid_request_error"
    assert ("Allow" in reply.headers) == (status == 405)


CONTEXT = "together 1100; this model's context holds 1024"
LONG, ID = "got 99999 characters, allowed: at most 65536", "[request id: 7] "
TOO_LONG = "context_length_exceeded"


@pytest.mark.parametrize(
    "said, param, code, told",
    [
        (
            f"max_tokens: the prompt has 900 tokens and max_tokens is 200, {CONTEXT}",
            *("max_tokens", TOO_LONG),
            "This model's maximum context length is 1024 tokens.",
        ),
        *(
            (
                f"messages: {LONG}{rest}",
                *("messages", TOO_LONG),
                f"messages: the prompt is too long: {LONG}{rest}",
            )
            for rest in (" where 1024 tokens fit", "")
        ),
        (f"{ID}unexpected inference input 'messages' for model 'm'", "messages", None, ""),
        (f"{ID}top_k: got -7, allowed: 0 or more", "top_k", None, "top_k: got -7, allowed: 0"),
    ],
)
def test_a_models_words_become_openais(said: str, param: str, code: str | None, told: str) -> None:
    error = of_text(said)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.message.startswith(told)


@pytest.mark.threat("openai-metrics", "playground-scripts")
def test_paths_that_a_browser_begins_with_need_no_key(starter: Starter) -> None:
    api = starter.api(key="the-key")
    for path in ("/", "/openapi.json", "/playground/"):
        assert api.get(path).status == 200
    for path in ("/metrics", "/playground/models", "/playground/models/echo", "/playground/x"):
        assert api.get(path).status == 401
    assert api.post("/v2/models/stranger/generate", words="a").status == 401
    assert api.post("/", inputs="a", model="echo").status == 401
    assert not api.triton.seen


@pytest.mark.threat("no-key")
def test_the_key_guards_all_but_health(starter: Starter) -> None:
    api = starter.api(key="secret-key")
    assert api.get("/health").status == api.get("/ping").status == 200
    assert api.get("/version").status == 401
    for header in (
        None,
        "Bearer wrong",
        "secret-key",
        "Basic secret-key",
        "Bearer ",
        "Bearer sécret",
    ):
        api.headers = {"Authorization": header.encode("utf-8").decode("latin-1")} if header else {}
        for reply in (api.get("/v1/models"), api.completion(), api.get("/nothing")):
            assert reply.status == 401
            assert reply.error["code"] == "invalid_api_key"
            assert "secret" not in reply.text
            assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert not api.triton.seen
    for headers in ({"Authorization": "bearer secret-key"}, {"x-api-key": "secret-key"}):
        api.headers = headers
        assert api.completion().status == 200


def test_a_triton_that_goes_away_is_a_503_until_it_is_back(starter: Starter) -> None:
    port = free_ports().grpc_port
    api = starter.api(port=port)
    assert api.completion().status == 200
    assert api.get("/health").status == 200
    ending = starter.endings.pop(0)
    starter.loop.run(ending)
    reply = api.completion()
    assert (reply.status, reply.error["code"]) == (503, "unavailable")
    assert reply.error["message"] == "no connection to Triton; try again"
    assert api.get("/health").status == 503
    api.triton, _ = starter.triton(port)
    starter.endings.reverse()  # the translator ends first
    assert eventually(lambda: api.completion().status == 200)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_model_says_is_told_in_its_callers_names(api: Translator, stream: bool) -> None:
    asked = [{"role": "user", "content": "!schema"}]
    reply = api.chat(messages=asked, guided_json={}, stream=stream)
    assert (reply.status, reply.error["param"]) == (400, "guided_json")
    assert reply.error["message"] == "guided_json: too complex, allowed: a simpler one"
