"""What happens when a step fails, the queue is full, or the model is unloaded while it works.

A stub can hold a step still or break it, a real server can't be made to.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from stub_server import Pending, StubServer

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Reference
from tests.scenarios.stub_endpoint import StubEndpoint
from tests.support.triton import eventually

SECRET = "hf_SecretThatNobodyMaySee0123456789"
PROMPTS = ["Once", "I am going", "Hello"]


Fill = Callable[[], list[Pending]]


class HeldStep:
    """Stands in for a model's computation: the first call waits, then computes or breaks."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        self._compute = compute
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.breaks = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_first = not self.entered.is_set()
        self.entered.set()
        if is_first:
            assert self.go_on.wait(60)
            if self.breaks:
                raise RuntimeError("out of memory")
        return self._compute(*args, **kwargs)


@pytest.fixture(params=["tight", "tight_padded", "tight_stream"])
def server(stub: StubEndpoint, request: pytest.FixtureRequest) -> StubServer:
    """A model with room for one running and two waiting requests: a front, or an engine itself."""
    return stub.model(request.param)


@pytest.fixture
def engine_server(stub: StubEndpoint, server: StubServer) -> StubServer:
    """The model that holds the engine of ``server``."""
    return stub.model(f"{server.config.name.removesuffix('_stream')}_stream")


@pytest.fixture
def held(engine_server: StubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldStep]:
    engine = engine_server.model.serving.loaded.engine
    owner, name = (
        (engine.runner, "forward")
        if engine.name == "in_flight"
        else (engine.setup.model, "generate")
    )
    step = HeldStep(getattr(owner, name))
    monkeypatch.setattr(owner, name, step)
    yield step
    step.go_on.set()


def send(server: StubServer, prompt: str, max_tokens: int = 6) -> Pending:
    request = Model(None, server.config.name, batched=False).by_tensors(  # type: ignore[arg-type]
        prompt, max_tokens=max_tokens
    )
    return server.send(request)


@pytest.fixture
def fill(server: StubServer, engine_server: StubServer, held: HeldStep) -> Fill:
    """Sends one request that runs and two that wait; when all are with the engine, returns them."""

    def send_all() -> list[Pending]:
        running = send(server, PROMPTS[0])
        assert held.entered.wait(60)
        pending = [running, *(send(server, prompt) for prompt in PROMPTS[1:])]
        engine = engine_server.model.serving.loaded.engine
        assert eventually(lambda: engine.num_unfinished == len(pending))
        return pending

    return send_all


def unload_with_the_step_going_on(engine_server: StubServer, held: HeldStep) -> None:
    """Lets the held step go on as soon as the engine knows that it is being unloaded."""
    engine = engine_server.model.serving.loaded.engine
    unloading = threading.Thread(target=engine_server.unload)
    unloading.start()
    assert eventually(lambda: engine.thread.stop_at_s is not None)
    held.go_on.set()
    unloading.join(60)


def test_a_failed_step_fails_its_requests_alone(
    server: StubServer, held: HeldStep, fill: Fill, reference: Reference
) -> None:
    held.breaks = True
    running, *waiting = fill()
    held.go_on.set()

    assert running.reply().status == 500
    assert running.reply().error == "generating failed: RuntimeError: out of memory"
    expected = [reference.text(prompt, 6) for prompt in PROMPTS[1:]]
    assert [pending.reply().text() for pending in waiting] == expected
    assert send(server, "Once").reply().text() == reference.text("Once", 6)


def test_a_full_queue_refuses_with_503_until_there_is_room(
    server: StubServer, held: HeldStep, fill: Fill, reference: Reference
) -> None:
    accepted = fill()

    refused = send(server, SECRET)
    assert eventually(lambda: refused.is_answered), "a refusal waits for nobody"
    held.go_on.set()

    assert refused.reply().status == 503
    for text in ("queue is full", "max_num_seqs 1", "max_queue_size 2"):
        assert text in refused.reply().error
    expected = [reference.text(prompt, 6) for prompt in PROMPTS]
    assert [pending.reply().text() for pending in accepted] == expected
    assert send(server, "Once").reply().text() == reference.text("Once", 6)


@pytest.mark.parametrize("grace_s", [30.0, 0.0])
def test_unloading_lets_requests_finish_that_do_in_time_and_answers_the_others(
    grace_s: float,
    stub: StubEndpoint,
    server: StubServer,
    engine_server: StubServer,
    held: HeldStep,
    fill: Fill,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_server.model.serving, "unload_grace_s", grace_s)
    pending = fill()
    unload_with_the_step_going_on(engine_server, held)

    first, *others = [waiting.reply() for waiting in pending]
    monkeypatch.undo()
    stub.load(engine_server)

    if grace_s:
        expected = [reference.text(prompt, 6) for prompt in PROMPTS]
        assert [reply.text() for reply in (first, *others)] == expected
    else:
        assert first.status in (200, 503)
        assert {reply.status for reply in others} == {503}
        assert all("unloaded" in reply.error for reply in others)
    assert send(server, "Once").reply().text() == reference.text("Once", 6)


def test_a_front_without_its_engine_says_so(stub: StubEndpoint, reference: Reference) -> None:
    server, engine_server = stub.model("tight"), stub.model("tight_stream")
    engine_server.unload()

    refused = send(server, SECRET).reply()
    stub.load(engine_server)

    assert refused.status == 503
    assert engine_server.config.name in refused.error
    assert send(server, "Once").reply().text() == reference.text("Once", 6)


def test_a_model_that_is_not_there_fails_its_load_in_one_line(
    stub: StubEndpoint, tmp_path: Path
) -> None:
    folder = shutil.copytree(stub.model("tight_stream").folder, tmp_path / "tight_stream")
    values = folder / "1" / "model.json"
    values.write_text(json.dumps({**json.loads(values.read_text()), "model": "/nowhere"}))

    with pytest.raises(pb_utils.TritonModelException) as failure, StubServer(folder):
        pass

    assert str(failure.value) == "tight_stream: local model: no config.json in /nowhere"


def test_neither_prompts_nor_secrets_are_logged(
    server: StubServer, held: HeldStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_parsing(*args: Any) -> None:
        raise ValueError(f"can't do {SECRET}")

    held.breaks = True
    failed = send(server, SECRET)
    held.go_on.set()
    replies = [failed.reply(), send(server, SECRET).reply(), send(server, SECRET, 0).reply()]
    monkeypatch.setattr("hf_triton.text_generation.reception.check_request", break_parsing)
    replies.append(send(server, SECRET).reply())

    assert [reply.status for reply in replies] == [500, 200, 400, 500]
    assert pb_utils.Logger.lines, "loading is logged"
    texts = [*pb_utils.Logger.lines, *(reply.error for reply in replies)]
    assert [text for text in texts if SECRET in text] == []
