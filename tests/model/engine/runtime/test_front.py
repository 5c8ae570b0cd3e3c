"""The front: every request answered exactly once, whatever the engine or the caller does."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from hf_triton.front.model import FrontModel
from hf_triton.runtime.errors import DeadlineError, EngineError, OverloadedError, RequestError
from hf_triton.runtime.link import frames
from hf_triton.runtime.link.engine_pool import EnginePool
from hf_triton.runtime.link.frames import Frame
from hf_triton.runtime.request.request import Request, take_each
from tests.support.link_engine import LinkEngine
from tests.support.triton import ROOT, eventually

pytestmark = pytest.mark.usefixtures("own_link")
_STATUS = {
    getattr(pb_utils.TritonError, name): name
    for name in ("INTERNAL", "INVALID_ARG", "UNAVAILABLE", "CANCELLED")
}


class Asked(pb_utils.InferenceRequest):
    """A request in Triton's words, and what came back."""

    def __init__(self, text: str) -> None:
        self.has_left, self.answered = threading.Event(), threading.Event()
        self._answers: list[tuple[Any, int]] = []
        tensors = [
            pb_utils.Tensor("text_input", np.array([text.encode()], dtype=np.object_)),
            pb_utils.Tensor("seed", np.array([2**64 - 1], dtype=np.uint64)),
        ]
        sender = pb_utils.ResponseSender(self._take, cancelled=self.has_left)
        super().__init__(tensors, {"top_p": math.nan}, ["text_output"], sender, "r-7")

    def _take(self, response: Any, flags: int) -> None:
        self._answers.append((response, flags))
        self.answered.set()

    def result(self) -> Any:
        """The text, or status and text of the error, which names the request once."""
        assert self.answered.wait(60), "not answered"
        ((response, flags),) = self._answers
        assert flags == pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response.has_error():
            label, _, text = response.error().message().partition("] ")
            assert label == "[request id: r-7"
            return _STATUS[response.error().code()], text
        (tensor,) = response.output_tensors()
        assert tensor.name() == "text_output"
        return tensor.as_numpy()[0].decode()


def echo(request: Request) -> None:
    request.responder.send({"text_output": request.inputs["text_input"]}, final=True)


@pytest.fixture
def engine() -> Iterator[LinkEngine]:
    with LinkEngine() as engine:
        yield engine


@pytest.fixture
def front() -> Iterator[EnginePool]:
    forwarder = EnginePool("m_stream")
    yield forwarder
    forwarder.close()


def ask(front: EnginePool, *texts: str) -> list[Asked]:
    requests = [Asked(text) for text in texts]
    take_each(requests, pb_utils, front.forward)
    return requests


def test_a_request_is_passed_on_as_it_is_and_answered(
    engine: LinkEngine, front: EnginePool
) -> None:
    (request,) = ask(front, "ü€😀")
    engine.waits_for(1)
    (taken,) = engine.taken
    seed = taken.inputs["seed"]
    assert seed.dtype == np.uint64
    assert seed.tolist() == [2**64 - 1]
    assert str(taken.parameters) == "{'top_p': nan}"
    assert taken.outputs == ["text_output"]
    assert taken.responder.request_id == "r-7"
    assert not taken.may_stream
    assert not taken.is_routed
    text = np.array(["ü€😀".encode()], dtype=np.object_)
    taken.responder.send({"not asked for": text, "text_output": text}, final=True)
    assert request.result() == "ü€😀"


@pytest.mark.parametrize(
    "error, expected",
    [
        (RequestError("top_p: got 2"), ("INVALID_ARG", "top_p: got 2")),
        (OverloadedError("full: try again"), ("UNAVAILABLE", "full: try again")),
        (DeadlineError("too late"), ("UNAVAILABLE", "too late")),
        (EngineError("no memory"), ("INTERNAL", "no memory")),
        (ValueError("a prompt"), ("INTERNAL", "internal error: ValueError")),
    ],
)
def test_errors_keep_their_status_and_text(
    error: Exception, expected: tuple[str, str], engine: LinkEngine, front: EnginePool
) -> None:
    (request,) = ask(front, "x")
    engine.waits_for(1)
    engine.taken[0].responder.fail(error)
    assert request.result() == expected


def test_without_an_engine_the_answer_says_what_to_load(front: EnginePool) -> None:
    (request,) = ask(front, "x")
    wanted = "no engine runs that could answer: load the model m_stream"
    assert request.result() == ("UNAVAILABLE", wanted)
    assert not front.is_any_reachable()
    engine = LinkEngine(echo)
    assert ask(front, "x")[0].result() == "x"
    assert front.is_any_reachable()
    engine.listener.close()


def test_when_the_engine_goes_away_all_that_waits_is_answered_at_once(
    engine: LinkEngine, front: EnginePool
) -> None:
    requests = ask(front, *"abc")
    engine.waits_for(3)
    engine.vanish()
    wanted = "the engine m_stream went away before it answered: try again"
    assert [request.result() for request in requests] == [("UNAVAILABLE", wanted)] * 3
    echo(engine.taken[0])  # too late, and ignored
    assert ask(front, "x")[0].result()[0] == "UNAVAILABLE"


def test_a_cancelled_request_is_answered_and_the_engine_is_told(
    engine: LinkEngine, front: EnginePool
) -> None:
    request, other = ask(front, "a", "b")
    engine.waits_for(2)
    request.has_left.set()
    assert request.result() == ("CANCELLED", "the request was cancelled")
    assert eventually(engine.taken[0].responder.is_cancelled)
    for taken in engine.taken:
        echo(taken)  # the first comes too late
    assert other.result() == "b"
    assert request.result()[0] == "CANCELLED"


def test_what_draining_engines_give_back_goes_to_others_while_there_are_any(
    engine: LinkEngine, front: EnginePool
) -> None:
    requests = ask(front, "a", "b", "c")
    engine.waits_for(3)
    second = LinkEngine()
    engine.listener.drain()
    for taken in engine.taken:
        taken.responder.fail(OverloadedError("unloading"))
    second.waits_for(3)
    third = LinkEngine()
    second.listener.drain()
    for taken in second.taken:
        taken.responder.fail(OverloadedError("unloading, too"))
    third.waits_for(3)
    third.taken.sort(key=lambda taken: str(taken.inputs["text_input"]))
    echo(third.taken[0])
    third.listener.drain()
    third.taken[1].responder.fail(OverloadedError("the last"))
    requests[2].has_left.set()
    assert eventually(third.taken[2].responder.is_cancelled)
    cancelled = ("CANCELLED", "the request was cancelled")
    told = {request.result() for request in requests}
    assert told == {"a", ("UNAVAILABLE", "the last"), cancelled}
    second.listener.close()
    third.listener.close()


def test_a_request_that_a_draining_engine_has_not_read_goes_to_another(
    engine: LinkEngine, front: EnginePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = ask(front, "first")
    engine.waits_for(1)
    (peer,) = engine.listener.callers
    monkeypatch.setattr(peer, "on_frame", lambda _: None)  # hangs up before it reads more
    (late,) = ask(front, "late")
    second = LinkEngine(echo)
    echo(engine.taken[0])
    engine.listener.close()
    assert [first.result(), late.result()] == ["first", "late"]
    second.listener.close()


def test_requests_go_to_the_least_busy_engine(engine: LinkEngine, front: EnginePool) -> None:
    second = LinkEngine()
    ask(front, "x")
    assert eventually(lambda: _usable(front) == [True, True])
    requests = ask(front, *"abcdefg")
    engine.waits_for(4)
    second.waits_for(4)
    for taken in second.taken:
        echo(taken)
    assert eventually(lambda: sum(len(c.pending) for c in front.clients()) == 4)
    requests = ask(front, *"hijk")
    second.waits_for(8)
    second.vanish()
    assert {request.result()[0] for request in requests} == {"UNAVAILABLE"}
    (last,) = ask(front, "z")
    engine.waits_for(5)
    for taken in engine.taken:
        echo(taken)
    assert last.result() == "z"
    second.listener.close()


def _usable(front: EnginePool) -> list[bool]:
    """True for each engine that takes requests, in the order in which they were found."""
    return [client.is_usable for client in front.clients()]


@pytest.mark.threat("link-socket")
def test_another_users_process_is_never_sent_a_request(
    engine: LinkEngine, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    front = EnginePool("m_stream")
    status, text = ask(front, "x", "y")[0].result()
    assert status == "UNAVAILABLE"
    assert f"can't be reached: peer is of user {uid}, allowed: {uid + 1}" in text
    assert sum("can't be reached" in line for line in log_lines) == 1
    assert engine.taken == []
    front.close()


def test_an_answer_that_does_not_hold_together_ends_the_connection_and_a_new_one_is_made(
    engine: LinkEngine, front: EnginePool, log_lines: list[str]
) -> None:
    (request,) = ask(front, "x")
    engine.waits_for(1)
    (peer,) = engine.listener.callers
    peer.send(frames.encode(Frame(frames.ERROR, 0)))
    assert request.result()[0] == "UNAVAILABLE"
    (again,) = ask(front, "y")
    engine.waits_for(2)
    echo(engine.taken[1])
    assert again.result() == "y"
    assert any("a frame of an unknown kind" in line for line in log_lines)


def test_a_request_too_large_is_its_callers_fault(
    engine: LinkEngine, front: EnginePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = ask(front, "x")
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    (request,) = ask(front, "x" * 2000)
    status, text = request.result()
    assert status == "INVALID_ARG"
    assert text.startswith("the request: got 2")
    assert text.endswith("bytes, allowed: at most 1000")
    engine.waits_for(1)
    echo(engine.taken[0])
    assert first.result() == "x"


def test_a_thousand_requests_wait_without_a_thread_each(
    engine: LinkEngine, front: EnginePool
) -> None:
    ask(front, "first")
    engine.waits_for(1)
    before = threading.active_count()
    requests = ask(front, *(str(number) for number in range(1000)))
    assert eventually(lambda: len(engine.taken) == 1001)
    assert threading.active_count() <= before
    waiting = engine.taken[1:]
    random.Random(0).shuffle(waiting)
    for taken in waiting:
        echo(taken)
    assert [request.result() for request in requests] == [str(number) for number in range(1000)]


def test_closing_answers_what_waits(engine: LinkEngine) -> None:
    front = EnginePool("m_stream")
    requests = ask(front, "a", "b")
    engine.waits_for(2)
    front.close()
    unloaded = ("UNAVAILABLE", "the model is being unloaded: try again")
    assert [request.result() for request in requests] == [unloaded] * 2
    assert ask(front, "c")[0].result() == unloaded
    assert eventually(engine.taken[0].responder.is_cancelled)


def test_every_request_is_answered_once_through_reloads_and_cancellations(
    front: EnginePool,
) -> None:
    chance = random.Random(1)
    delays = threading.Semaphore(0)

    def answer_later(request: Request) -> None:
        threading.Timer(chance.random() / 50, echo, [request]).start()

    engine = LinkEngine(answer_later)
    requests: list[Asked] = []
    for turn in range(10):
        batch = ask(front, *(f"{turn} {number}" for number in range(50)))
        requests += batch
        for request in chance.sample(batch, 5):
            request.has_left.set()
        following = LinkEngine(answer_later)
        delays.acquire(timeout=0.01)
        engine.listener.close() if turn % 2 else engine.vanish()
        engine = following
    for number, request in enumerate(requests):
        result = request.result()
        own = f"{number // 50} {number % 50}"
        assert result == own or result[0] in ("UNAVAILABLE", "CANCELLED"), result
    engine.listener.close()


def test_the_model_reads_its_folder_and_serves(
    engine: LinkEngine, tmp_path: Path, log_lines: list[str]
) -> None:
    model = FrontModel()
    model.finalize()  # Triton may, where initialize failed
    arguments = _written(tmp_path, {"name": "m", "engine": "m_stream", "max_batch_size": 0})
    model.initialize(arguments)
    assert log_lines == ["I m: passes requests on to m_stream"]
    assert model.is_ready()
    request = Asked("x")
    model.execute([request])
    engine.waits_for(1)
    echo(engine.taken[0])
    assert request.result() == "x"
    model.finalize()


@pytest.mark.usefixtures("log_lines")  # which keep the model's name to themselves
def test_a_folder_that_was_not_generated_fails_to_load_in_one_line(tmp_path: Path) -> None:
    arguments = _written(tmp_path, {"name": "m"})
    with pytest.raises(pb_utils.TritonModelException, match=r"^m: model\.json: 'engine'; run"):
        FrontModel().initialize(arguments)


def _written(folder: Path, values: dict[str, object]) -> dict[str, str]:
    (folder / "1").mkdir()
    (folder / "1" / "model.json").write_text(json.dumps(values), encoding="utf-8")
    return {"model_name": "m", "model_repository": str(folder), "model_version": "1"}


def test_the_front_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, hf_triton.front.model; print(*{'torch', 'transformers'} & set(sys.modules))"
    paths = os.pathsep.join(str(ROOT / path) for path in (".", "tests/stub"))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
