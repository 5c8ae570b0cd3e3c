"""An adapter of a model that streams and takes batches, on a real server."""

from __future__ import annotations

import pytest

from tests.scenarios.endpoint import Model, rows
from tests.scenarios.reference import Reference
from tests.scenarios.triton_endpoints import HttpEndpoint
from tests.support.one_server import OneServer
from tests.support.triton import Triton

PROMPT = "I am going"
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("batched", "demo")


@pytest.fixture
def model(triton: Triton) -> Model:
    return Model(HttpEndpoint(triton), "batched", batched=True)


def test_rows_of_one_request_name_an_adapter_or_none(model: Model, reference: Reference) -> None:
    request = rows([PROMPT] * 3, max_tokens=[NUM_TOKENS] * 3, lora_name=["loud", "", "loud"])
    loud, plain, again = model.infer(request).texts()
    assert plain == reference.text(PROMPT, NUM_TOKENS)
    assert loud == again != plain
    how = {"max_tokens": NUM_TOKENS, "lora_name": "loud"}
    assert model.sample(PROMPT, **how).texts() == [loud]
    status, answer = model.generate({"text_input": PROMPT, "parameters": how})
    assert (status, answer["text_output"]) == (200, loud)


def test_an_unknown_one_is_a_400_with_the_known_ones(triton: Triton, model: Model) -> None:
    reply = model.ask("tensors", PROMPT, lora_name="lod")
    assert "lora_name: got lod, allowed: loud" in str(reply.error)
    other = Model(HttpEndpoint(triton), "demo", batched=False)
    reply = other.ask("tensors", PROMPT, lora_name="loud")
    assert "lora_name: got loud, allowed: none: this model has no adapters" in str(reply.error)
