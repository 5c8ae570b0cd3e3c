"""What keeps callers of OpenAI's API apart from each other, and from Triton's own."""

from __future__ import annotations

import pytest

from hf_triton.ports.settings import Caller
from hf_triton.runtime.request.request_parameters import CALL
from tests.unit.openai_api.conftest import Starter, Translator

KEY = "secret-key"


def caller_of(key: str) -> str:
    return Caller("openai", key).alias


def parameters(api: Translator) -> dict[str, str]:
    """Those of the last request for vectors."""
    last = api.triton.encoder_requests[-1]
    return {name: one.string_param for name, one in last.parameters.items() if name != CALL}


def test_a_salt_goes_on_to_the_model(api: Translator) -> None:
    for reply in (api.completion(cache_salt="a salt"), api.chat(cache_salt="a salt")):
        assert reply.status == 200
        assert api.triton.seen[-1]["cache_salt"] == "a salt"
    for prompts in (["a", "b"], ["c"]):
        assert api.completion(prompt=prompts, cache_salt="another").status == 200
        last = api.triton.seen[-len(prompts) :]
        assert {inputs["cache_salt"] for inputs in last} == {"another"}
    for absent in ({}, {"cache_salt": None}):
        assert api.completion(**absent).status == 200
        assert "cache_salt" not in api.triton.seen[-1]


def test_vectors_take_one_too(api: Translator) -> None:
    reply = api.post("/v1/embeddings", model="vectors", input="a", cache_salt="a salt", user="ann")
    assert reply.status == 200
    assert parameters(api) == {"cache_salt": "a salt", "user": "ann"}


@pytest.mark.threat("shared-prefix-timing")
def test_who_has_the_key_is_a_caller_of_his_own(starter: Starter) -> None:
    fake, port = starter.triton()
    api = starter.translator(fake, f"127.0.0.1:{port}", key=KEY)
    api.headers = {"Authorization": f"Bearer {KEY}"}
    for reply in (api.completion(), api.completion(stream=True), api.chat(cache_salt="a salt")):
        assert reply.status == 200
        assert fake.seen[-1]["hf-triton-caller"] == caller_of(KEY)
    assert api.post("/v1/embeddings", model="vectors", input="a").status == 200
    assert parameters(api) == {"hf-triton-caller": caller_of(KEY)}


def test_nobody_names_another_caller(api: Translator) -> None:
    assert api.completion(**{"hf-triton-caller": caller_of(KEY)}).status == 200
    assert "hf-triton-caller" not in api.triton.seen[-1]
