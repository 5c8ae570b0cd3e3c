"""A request under way in the stub server: what has come back, and what its client makes of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_checks
import triton_python_backend_utils as pb_utils
from wire import Array, Reply, Request

HTTP_STATUS = {
    pb_utils.TritonError.INVALID_ARG: 400,
    pb_utils.TritonError.CANCELLED: 400,
    pb_utils.TritonError.NOT_FOUND: 404,
    pb_utils.TritonError.UNSUPPORTED: 501,
    pb_utils.TritonError.UNAVAILABLE: 503,
}
_ANSWER_TIMEOUT_S = 60.0
_END = None


class Pending:
    """A request that was passed on; its replies come from whichever thread the model answers in.

    ``faults`` are what a model must not do. ``is_finished``: the model has sent its FINAL flag,
    which it owes even to a client that has gone.
    """

    def __init__(self, config: Any, request: Request) -> None:
        self._config, self._request = config, request
        self._arrived: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._finished = threading.Event()
        self._answered = threading.Event()
        self._cancelled = threading.Event()
        self.sender = pb_utils.ResponseSender(
            self.deliver,
            decoupled=config.model_transaction_policy.decoupled,
            cancelled=self._cancelled,
        )
        self.faults: list[str] = []
        self._reply: Reply | None = None

    @property
    def is_answered(self) -> bool:
        """True once a first response is there."""
        return self._answered.is_set()

    @property
    def is_finished(self) -> bool:
        return self._finished.is_set()

    def wait_finished(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> bool:
        return self._finished.wait(timeout_s)

    def cancel(self) -> None:
        """The client's cancel: it sees its own status at once, the model finds out when it asks."""
        self._cancelled.set()
        self._put(Reply(400, "Locally cancelled by application!"))
        self._arrived.put(_END)

    def deliver(self, response: pb_utils.InferenceResponse | None, flags: int) -> None:
        """Takes one response of the model, or its FINAL flag alone, or both."""
        final = flags == pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            # To a client that had gone it crashed servers of 24.10.
            self.faults.append("the FINAL flag came alone")
        else:
            if response.has_error() and not final:
                self.faults.append("an error came without the FINAL flag")
            self._put(self._as_reply(response))
        if final:
            self._arrived.put(_END)
            self._finished.set()

    def settle(self, reply: Reply) -> None:
        """Triton's own answer, which is the only one."""
        self._put(reply)
        self._arrived.put(_END)
        self._finished.set()

    def replies(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Iterator[Reply]:
        """The replies as they come, up to the last one; fails where the model breaks its config."""
        while True:
            try:
                reply = self._arrived.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError("the model did not answer") from None
            assert not self.faults, self.faults
            if reply is _END:
                return
            yield reply

    def reply(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Reply:
        """The one reply of a model in default mode."""
        if self._reply is None:
            (self._reply,) = self.replies(timeout_s)
        assert not self.faults, self.faults
        return self._reply

    def _put(self, reply: Reply) -> None:
        self._arrived.put(reply)
        self._answered.set()

    def _as_reply(self, response: pb_utils.InferenceResponse) -> Reply:
        error = response.error()
        if error is not None:
            return Reply(HTTP_STATUS.get(error.code(), 500), error.message())
        outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        self.faults += triton_checks.output_faults(self._config, outputs, self._num_rows())
        wanted = self._request.outputs or tuple(outputs)
        return Reply(
            200, outputs={name: _on_the_wire(outputs[name]) for name in outputs if name in wanted}
        )

    def _num_rows(self) -> int | None:
        """None where outputs have no batch dimension.

        Triton looks at no output's rank. Clients of TensorRT-LLM, which alone send ``beam_width``,
        read flat ones whatever max_batch_size is; LiteLLM, whose ``input_text`` is a list of texts
        to a model without batches, reads an output for each of them.
        """
        if self._config.parameters["hf_triton_role"].string_value == "tokenizer":
            return None  # its rows are its own
        tensors = self._request.tensors
        if not self._config.max_batch_size and "input_text" in tensors:
            return int(tensors["input_text"].shape[0])
        if not self._config.max_batch_size or "beam_width" in tensors:
            return None
        return int(next(iter(tensors.values())).shape[0])


def _on_the_wire(array: Array) -> Array:
    """Texts travel as bytes, whatever the model made them of."""
    if array.dtype.kind != "O":
        return array
    flat = [x.encode() if isinstance(x, str) else x for x in array.flat]
    return np.array(flat, dtype=np.object_).reshape(array.shape)
