"""The stub refuses what Triton's Python backend refuses of a model."""

from __future__ import annotations

import numpy as np
import pytest
import triton_checks
import triton_python_backend_utils as pb_utils
from wire import strings

from tests.scenarios.stub_endpoint import StubEndpoint

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_LAST, _PART, _END = (True, FINAL), (True, 0), (False, FINAL)  # a response or none, and flags


@pytest.mark.parametrize(
    "decoupled, sent, refused, message",
    [
        (False, [_LAST], _LAST, "more than one response"),
        (False, [_LAST], _END, "has been closed"),
        (False, [], _END, "before sending a response"),
        (True, [_PART, _LAST], _LAST, "has been closed"),
        (True, [_PART, _LAST], _END, "has been closed"),
    ],
)
def test_what_a_model_may_not_send_is_refused(
    decoupled: bool,
    sent: list[tuple[bool, int]],
    refused: tuple[bool, int],
    message: str,
) -> None:
    delivered: list[pb_utils.InferenceResponse | None] = []
    sender = pb_utils.ResponseSender(
        lambda response, flags: delivered.append(response), decoupled=decoupled
    )

    def send(is_response: bool, flags: int) -> None:
        sender.send(pb_utils.InferenceResponse() if is_response else None, flags=flags)

    for one in sent:
        send(*one)
    with pytest.raises(pb_utils.TritonModelException, match=message):
        send(*refused)
    assert len(delivered) == len(sent)


def test_outputs_that_break_the_config_are_faults(stub: StubEndpoint) -> None:
    outputs = {
        "text_output": np.array([1], dtype=np.int32),
        "num_input_tokens": np.array([[1]], dtype=np.uint32),
        "logits": strings("a"),
    }
    config = stub.model("tight").config
    assert len(triton_checks.output_faults(config, outputs, None)) == 3
    assert triton_checks.output_faults(config, {"text_output": strings("a")}, None) == []
