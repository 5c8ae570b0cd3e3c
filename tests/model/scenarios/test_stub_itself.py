"""The stub refuses what Triton's Python backend refuses of a model."""

from __future__ import annotations

import numpy as np
import pytest
import triton_checks
import triton_python_backend_utils as pb_utils
from stub_server import StubServer
from wire import strings

from tests.scenarios.stub_endpoint import StubEndpoint

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@pytest.fixture
def server(stub: StubEndpoint) -> StubServer:
    return stub.model("tight")


Sent = list[pb_utils.InferenceResponse | None]


def sender(*, decoupled: bool = False) -> tuple[pb_utils.ResponseSender, Sent]:
    delivered: Sent = []
    sending = pb_utils.ResponseSender(
        lambda response, flags: delivered.append(response), decoupled=decoupled
    )
    return sending, delivered


def test_a_second_response_is_refused() -> None:
    sending, delivered = sender()
    sending.send(pb_utils.InferenceResponse(), flags=FINAL)

    with pytest.raises(pb_utils.TritonModelException, match="more than one response"):
        sending.send(pb_utils.InferenceResponse(), flags=FINAL)
    assert len(delivered) == 1


def test_nothing_is_sent_after_the_final_flag() -> None:
    sending, _ = sender()
    sending.send(pb_utils.InferenceResponse(), flags=FINAL)

    with pytest.raises(pb_utils.TritonModelException, match="has been closed"):
        sending.send(flags=FINAL)


def test_a_final_flag_without_a_response_is_refused() -> None:
    sending, _ = sender()

    with pytest.raises(pb_utils.TritonModelException, match="before sending a response"):
        sending.send(flags=FINAL)


def test_a_decoupled_model_may_send_many_responses_but_none_after_the_final_flag() -> None:
    sending, delivered = sender(decoupled=True)
    sending.send(pb_utils.InferenceResponse())
    sending.send(pb_utils.InferenceResponse(), flags=FINAL)

    for response in (pb_utils.InferenceResponse(), None):
        with pytest.raises(pb_utils.TritonModelException, match="has been closed"):
            sending.send(response, flags=FINAL)
    assert len(delivered) == 2


def test_outputs_that_break_the_config_are_faults(server: StubServer) -> None:
    outputs = {
        "text_output": np.array([1], dtype=np.int32),
        "num_input_tokens": np.array([[1]], dtype=np.uint32),
        "logits": strings("a"),
    }

    faults = triton_checks.output_faults(server.config, outputs, None)

    assert len(faults) == 3
    assert triton_checks.output_faults(server.config, {"text_output": strings("a")}, None) == []
