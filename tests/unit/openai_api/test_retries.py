"""Requests to OpenAI's API whose model dies, or is being loaded again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from generator.render.manifest import CONFIG_FILE
from hf_triton.ports import retries
from hf_triton.ports.openai.triton.catalog import Catalog
from hf_triton.ports.retries import Model
from hf_triton.tritonserver.state_file import write_served
from tests.support.triton import eventually, free_ports
from tests.unit.openai_api.conftest import MODELS, Starter, Translator
from tests.unit.openai_api.fake_triton import FakeTriton

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


def test_a_stream_that_has_begun_ends_with_an_error(
    api: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, passed_on = threading.Event(), retries.InFlight.passed_on

    def noted(request: retries.InFlight, *args: int) -> None:
        passed_on(request, *args)
        begun.set()

    monkeypatch.setattr(retries.InFlight, "passed_on", noted)
    api.tell(echo_stream=READY)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(api.completion, prompt="a b !waits", stream=True)
        assert begun.wait(60)
        api.tell(echo_stream=DIED)
        *_, last = asked.result(60).events
    assert "died while it answered" in last["error"]["message"]
    assert last["error"]["code"] == "unavailable"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose record says that "echo" is to be served."""
    write_served(tmp_path, ["echo"])
    (tmp_path / "echo_stream").mkdir()
    config = next(model.config() for model in MODELS if model.name == "echo_stream")
    (tmp_path / "echo_stream" / CONFIG_FILE).write_text(str(config))
    return tmp_path


def test_a_request_waits_for_a_model_that_is_gone_before_anybody_says_so(
    starter: Starter, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog.models, "__defaults__", (0.0,))  # instead of two seconds
    api = starter.api(repository=repository)
    fake = api.triton
    api.tell(echo_stream=READY)
    assert api.completion().status == 200
    del fake.models["echo_stream"], fake.models["echo"]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.completion)
        assert not eventually(waiting.done, 0.5)
        api.tell(echo_stream=COMING)
        assert not eventually(waiting.done, 0.5)
        fake.models.update({model.name: model for model in MODELS})
        api.tell(echo_stream=READY)
        assert waiting.result(60).status == 200


def test_a_port_that_was_started_while_triton_is_away_knows_what_comes_back(
    starter: Starter, repository: Path
) -> None:
    port = free_ports().grpc_port
    api = starter.translator(FakeTriton(), port, repository=repository)
    assert api.completion().status == 503
    api.tell(echo_stream=READY)  # as before it died
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.completion)
        assert not eventually(waiting.done, 0.5)
        api.tell(echo_stream=COMING)
        assert not eventually(waiting.done, 0.5)
        starter.triton(port)
        api.tell(echo_stream=READY)
        assert waiting.result(60).status == 200


def test_a_tritonserver_that_has_died_is_waited_for_before_anybody_says_so(
    starter: Starter, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "NOTICED_S", 0.1)
    fake, port = starter.triton()
    stop_triton = starter.endings.pop()
    api = starter.translator(fake, port, repository=repository)
    api.tell(echo_stream=READY)
    assert api.completion().status == 200
    starter.loop.run(stop_triton)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.completion)
        assert not eventually(waiting.done, 1.0)
        starter.triton(port)
        assert waiting.result(60).status == 200
