"""Requests to OpenAI's API whose model dies, or is being loaded again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_triton.ports.repeats import Model
from tests.openai_api.conftest import MODELS, Translator
from tests.support.triton import eventually

READY, COMING, DIED = Model(), Model(is_coming=True), Model(num_deaths=1, why="it was killed")
NAMES = {"echo": "echo_stream", "whole": "whole"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", NAMES)
def test_a_request_whose_model_is_away_is_asked_again(
    api: Translator, model: str, stream: bool
) -> None:
    whole = api.completion(model=model, stream=stream)
    api.tell(**{NAMES[model]: READY})
    api.triton.num_away = 2
    again = api.completion(model=model, stream=stream)
    assert (again.status, len(again.text)) == (200, len(whole.text))


def test_a_request_whose_model_dies_is_asked_again(api: Translator) -> None:
    api.tell(vectors=READY)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(api.post, "/v1/embeddings", model="vectors", input="a !waits")
        assert eventually(lambda: api.triton.num_waiting == 1)
        api.triton.waits = False
        api.tell(vectors=DIED)
        assert asked.result(60).status == 200
    assert eventually(lambda: api.triton.left == ["a !waits"])  # its engine is told, if it lives


def test_a_stream_that_has_begun_ends_with_an_error(api: Translator) -> None:
    api.tell(echo_stream=READY)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(api.completion, prompt="a b !waits", stream=True)
        assert eventually(lambda: api.triton.num_waiting == 1)
        api.tell(echo_stream=DIED)
        *_, last = asked.result(60).events
    assert "died while it answered" in last["error"]["message"]
    assert last["error"]["code"] == "unavailable"


def test_a_request_waits_for_a_model_that_comes_back(api: Translator) -> None:
    assert api.completion().status == 200  # it is known from before
    api.tell(echo_stream=COMING)
    asked, models = len(api.triton.seen), api.triton.models
    del models["echo_stream"], models["echo"]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.completion)
        assert not eventually(waiting.done, 0.5)
        assert len(api.triton.seen) == asked
        models.update({model.name: model for model in MODELS})
        api.tell(echo_stream=READY)
        assert waiting.result(60).status == 200
