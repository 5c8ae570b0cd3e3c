"""The playground's page: its headers, and its requests beside OpenAI's API."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hf_triton.ports.openai.playground import routes
from hf_triton.ports.retries import Model as Told
from hf_triton.tritonserver.model_state import State
from tests.support.triton import eventually
from tests.unit.openai_api.conftest import Starter, Translator

PAGE = Path(routes.__file__).with_name("page")


@pytest.mark.threat("playground-scripts")
def test_every_file_comes_with_a_policy_that_lets_nothing_else_in(api: Translator) -> None:
    for path in routes.PATHS - {"/playground"}:
        reply = api.get(path)
        assert reply.status == 200
        policy = reply.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert api.get("/playground").text == api.get("/playground/").text


def test_files_name_no_other_origin_and_make_no_markup_of_text() -> None:
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://|innerHTML|insertAdjacent|\bstyle=|\bon\w+=\"", text), file


def test_a_playground_that_is_left_out_is_not_there(starter: Starter) -> None:
    api = starter.api(has_playground=False)
    for path in ("/playground", "/playground/", "/playground/models"):
        assert api.get(path).status == 404
    assert api.post("/v2/models/stranger/generate", words="a").status == 404


def test_each_model_is_shown_once_with_its_state_and_the_reason(starter: Starter) -> None:
    api = starter.api()
    api.tell(
        echo=Told(),
        echo_stream=Told(),
        late=Told(state=State.LOADING, reason="is being loaded"),
        whole=Told(state=State.FAILED, reason="no file config.json"),
        labels=Told(state=State.HEALING, reason="its Python process died"),
    )
    found = {one["name"]: one for one in api.get("/playground/models").body["models"]}
    assert {"echo_stream", "batched_stream"}.isdisjoint(found)
    assert {"echo", "labels", "stranger", "late"} <= found.keys()
    assert found["echo"]["state"] == "ready"
    assert found["echo"]["versions"] == ["1"]
    assert found["echo"]["chats"]
    assert not found["translator"]["chats"]
    assert found["translator"]["completes"]
    assert found["late"] == {"name": "late", "state": "loading", "reason": "is being loaded"}
    assert (found["whole"]["state"], found["whole"]["reason"]) == ("failed", "no file config.json")
    assert (found["labels"]["state"], found["labels"]["reason"]) == (
        *("loading", "its Python process died"),
    )


def test_without_a_supervisor_what_triton_has_is_ready(api: Translator) -> None:
    states = {one["state"] for one in api.get("/playground/models").body["models"]}
    assert states == {"ready"}


def test_a_form_is_what_the_configuration_declares(api: Translator) -> None:
    form = api.get("/playground/models/stranger").body
    named = [(one["name"], one["datatype"], one["is_list"]) for one in form["inputs"]]
    assert named == [
        ("words", "BYTES", True),
        ("times", "INT32", False),
        ("scale", "FP32", False),
        ("loud", "BOOL", False),
    ]
    assert form["sample"] == {"words": ""}
    assert api.get("/playground/models/nobody").status == 404
    assert api.get("/playground/models/..%2f..%2fx").status == 404


def test_values_become_the_tensors_that_are_declared(api: Translator) -> None:
    reply = api.post("/v2/models/stranger/generate", words=["a", "é"], times=2, scale=1, loud=True)
    assert reply.body == {
        "model_name": "stranger",
        "model_version": "1",
        "output": '[{"word": "a", "times": 2}, {"word": "\\u00e9", "times": 2}]',
        "score": [0.5, None],
    }
    assert api.triton.seen == [{"words": ["a", "é"], "times": 2, "scale": 1.0, "loud": True}]
    assert api.triton.shapes == [[2], [1], [1], [1]]


def test_an_error_of_the_model_names_the_input(api: Translator) -> None:
    reply = api.post("/v2/models/stranger/generate", words="a", times=-1)
    assert (reply.status, reply.error["message"]) == (400, "times: got -1, allowed: 0 or more")


def test_only_whole_models_that_are_there_are_asked(api: Translator) -> None:
    assert api.post("/v2/models/nobody/generate", words="a").status == 404
    reply = api.post("/v2/models/echo_stream/generate")
    assert (reply.status, reply.error["param"]) == (400, None)
    del api.triton.models["stranger"]
    api.tell(stranger=Told(state=State.LOADING, waits_for="is being loaded"))
    assert eventually(lambda: api.post("/v2/models/stranger/generate", words="a").status == 503)
