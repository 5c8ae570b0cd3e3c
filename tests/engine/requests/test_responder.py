"""What a request's responder leaves behind once the request is answered."""

from __future__ import annotations

import weakref

import numpy as np
import triton_python_backend_utils as pb_utils
from hf_runtime.errors import EngineError
from hf_runtime.request.responder import TritonResponder

OUTPUTS = {"text_output": np.array([b"a"], dtype=np.object_)}


class Request:
    """One that is asked for its sender once."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        sender = pb_utils.ResponseSender(lambda _, flags: self.sent.append(flags), decoupled=True)
        self.sender = weakref.ref(sender)
        self._senders = [sender]

    def request_id(self) -> str:
        return "7"

    def get_response_sender(self) -> pb_utils.ResponseSender:
        return self._senders.pop()


def test_a_sender_goes_with_the_last_response_and_not_before() -> None:
    request = Request()
    responder = TritonResponder(request, pb_utils)
    responder.send(OUTPUTS, final=False)
    assert not responder.is_cancelled()
    assert request.sender() is not None
    responder.send(OUTPUTS, final=True)
    assert request.sender() is None
    assert not responder.is_cancelled()


def test_a_sender_goes_with_an_error_which_is_the_last_response() -> None:
    request = Request()
    responder = TritonResponder(request, pb_utils)
    responder.fail(EngineError("broken"))
    responder.send(OUTPUTS, final=False)
    assert request.sender() is None
    assert request.sent == [pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL]
