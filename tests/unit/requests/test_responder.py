"""Responses leave nothing behind; outputs are delivered to each recipient by itself."""

from __future__ import annotations

import json
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from hf_triton.runtime.errors import EngineError
from hf_triton.runtime.request.request import take_each
from hf_triton.runtime.request.request_parameters import CALL, EMPTY_FINAL, VARIABLE, call_in
from hf_triton.runtime.request.responder import TritonResponder
from hf_triton.text_generation.engine.engine import Delivery
from hf_triton.text_generation.sequence.sequence import Update

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
OUTPUTS = {"text_output": np.array([b"a"], dtype=np.object_)}


class Request:
    """One that is asked for its sender once."""

    def __init__(self, parameters: dict[str, object] | None = None) -> None:
        self.sent: list[int] = []
        self.num_empty = 0
        self.samples = np.ones(3, dtype=np.float32)
        self.errors: list[pb_utils.TritonError] = []
        self._parameters = parameters or {}
        sender = pb_utils.ResponseSender(self._note, decoupled=True)
        self.sender = weakref.ref(sender)
        self._senders = [sender]

    def _note(self, response: pb_utils.InferenceResponse | None, flags: int) -> None:
        self.sent.append(flags)
        self.num_empty += response is None
        self.outputs = [one.name() for one in response.output_tensors()] if response else []
        if response is not None and (error := response.error()) is not None:
            self.errors.append(error)

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def inputs(self) -> list[pb_utils.Tensor]:
        return [pb_utils.Tensor("samples", self.samples)]

    def request_id(self) -> str:
        return "7"

    def requested_output_names(self) -> list[str]:
        return ["text_output"]

    def get_response_sender(self) -> pb_utils.ResponseSender:
        return self._senders.pop()


def test_a_request_has_its_tensors_when_triton_has_freed_them() -> None:
    taken: list[Any] = []
    request = Request()
    take_each([request], pb_utils, lambda request: taken.append(request.inputs["samples"]))
    request.samples[:] = np.nan  # where others' numbers are by now
    assert np.array_equal(taken, [[1, 1, 1]])


def test_a_sender_goes_with_the_last_response_and_not_before() -> None:
    request = Request()
    responder = TritonResponder(request, pb_utils)
    responder.send(OUTPUTS, final=False)
    assert not responder.is_cancelled()
    assert request.sender() is not None
    responder.send(OUTPUTS, final=True)
    assert request.sender() is None
    assert not responder.is_cancelled()


def test_an_output_that_the_caller_did_not_list_is_not_sent() -> None:
    request = Request()
    label = np.array([b"good"], dtype=np.object_)
    TritonResponder(request, pb_utils).send({"label": label, **OUTPUTS}, final=True)
    assert request.outputs == ["text_output"]


def test_a_caller_has_left_when_its_calls_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/left_")
    call = "0123456789abcdef" * 2
    responder = TritonResponder(Request({"user": "x", CALL: call}), pb_utils)
    strangers: list[dict[str, object]] = [{}, {CALL: "f" * 32}, {"user": f'"{CALL}": "{call}"'}]
    others = [TritonResponder(Request(parameters), pb_utils) for parameters in strangers]
    assert not responder.is_cancelled()
    (tmp_path / f"left_{call}").touch()
    assert responder.is_cancelled()
    assert not any(other.is_cancelled() for other in others)
    responder.fail(EngineError("broken"))
    assert not responder.is_cancelled()


@pytest.mark.parametrize(
    "call", ["../left", "", "0" * 31, "0" * 33, "0" * 32 + "-1", "0" * 32 + "-1-2-..", 5, None]
)
def test_a_call_that_no_port_has_named_is_no_file(
    call: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/left_")
    assert call_in(json.dumps({CALL: call})) is None
    monkeypatch.delenv(VARIABLE)
    assert call_in(json.dumps({CALL: "0" * 32})) is None


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_the_last_response_is_empty_for_who_asks_for_it(asks: bool, decoupled: bool) -> None:
    request = Request({EMPTY_FINAL: True} if asks else {})
    responder = TritonResponder(request, pb_utils, decoupled=decoupled)
    responder.send(OUTPUTS, final=False)
    responder.send(OUTPUTS, final=True)
    assert request.sent == ([0, 0, FINAL] if asks and decoupled else [0, FINAL])
    assert request.num_empty == (1 if asks and decoupled else 0)
    assert request.sender() is None


def test_a_sender_goes_with_an_error_which_is_the_last_response() -> None:
    request = Request({EMPTY_FINAL: True})
    responder = TritonResponder(request, pb_utils, decoupled=True)
    responder.fail(EngineError("broken"))
    responder.send(OUTPUTS, final=False)
    assert request.sender() is None
    assert (request.sent, request.num_empty) == ([FINAL], 0)


def test_an_error_of_a_status_that_triton_does_not_have_is_answered() -> None:
    error = EngineError("broken")
    error.status = "TEAPOT"
    request = Request()
    TritonResponder(request, pb_utils).fail(error)
    (sent,) = request.errors
    assert sent.code() == pb_utils.TritonError.INTERNAL
    assert "broken" in sent.message()


WAIT_S = 60.0


class Stream:
    """A recipient that notes what it is to send; a ``gate`` holds it up."""

    streams = True
    request_id = "7"

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.sent: list[list[int]] = []
        self._gate, self._new = gate, list[int]()
        self._changed = threading.Condition()

    def take(self, update: Update) -> None:
        self._new += update.token_ids

    def flush(self) -> None:
        assert self._gate is None or self._gate.wait(WAIT_S)
        with self._changed:
            self.sent.append(self._new)
            self._new = []
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def has_sent(self, num_chunks: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.sent) >= num_chunks, WAIT_S)


@dataclass(eq=False)
class OneOf:
    """A sequence, as far as news knows it."""

    recipient: Any

    def news(self, token_id: int) -> list[Update]:
        sequence: Any = self
        return [Update(sequence, [token_id], [], "", None, None)]


def test_news_of_several_steps_goes_out_together_where_sending_falls_behind() -> None:
    gate = threading.Event()
    delivery, slow, other = Delivery(), Stream(gate), Stream()
    for number in range(4):
        delivery.put([*OneOf(slow).news(number), *OneOf(other).news(number)])
    gate.set()
    delivery.stop()
    assert [token for chunk in slow.sent for token in chunk] == [0, 1, 2, 3]
    assert len(slow.sent) == len(other.sent) <= 2


class Panic(BaseException):
    """A panic in the tokenizers' Rust, as Python has it: no Exception."""


class Undecodable(Stream):
    """A recipient whose tokens have no text."""

    def take(self, update: Update) -> None:
        raise Panic("index out of bounds")

    def fail(self, error: Exception) -> None:
        self._new = [-1]


def test_a_panic_of_the_tokenizer_is_one_recipients(log_lines: list[str]) -> None:
    delivery, broken, other = Delivery(), Undecodable(), Stream()
    delivery.put([*OneOf(broken).news(0), *OneOf(other).news(1)])
    assert other.has_sent(1)
    assert broken.has_sent(1)
    delivery.stop()
    assert broken.sent == [[-1]]
    [line] = log_lines
    assert line.startswith("E [request id: 7] an output could not be delivered: ")
