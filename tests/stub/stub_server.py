"""Plays Triton's part for one generated model, in this process: no server, no sockets.

Reads the model's config.pbtxt, refuses what Triton refuses, hands requests to ``execute``, checks
what comes back against the config, and turns it into the reply that a client would see.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import flat_json
import numpy as np
import triton_checks
import triton_python_backend_utils as pb_utils
from google.protobuf import json_format
from wire import Array, Reply, Request

from generator import model_config

_HTTP_STATUS = {
    pb_utils.TritonError.INVALID_ARG: 400,
    pb_utils.TritonError.CANCELLED: 400,
    pb_utils.TritonError.NOT_FOUND: 404,
    pb_utils.TritonError.UNSUPPORTED: 501,
    pb_utils.TritonError.UNAVAILABLE: 503,
}
_ANSWER_TIMEOUT_S = 60.0


class Pending:
    """A request that was passed on; its reply comes from whichever thread the model answers in."""

    def __init__(self, config: Any, request: Request) -> None:
        self._config, self._request = config, request
        self._answered = threading.Event()
        self._reply: Reply | None = None
        self.faults: list[str] = []

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    def deliver(self, response: pb_utils.InferenceResponse, flags: int) -> None:
        """Takes the model's one response."""
        if flags != pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self.faults.append("the response came without the FINAL flag")
        self.settle(self._as_reply(response))

    def settle(self, reply: Reply) -> None:
        self._reply = reply
        self._answered.set()

    def reply(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Reply:
        """Waits for the answer; fails where none comes or where it breaks the model's config."""
        assert self._answered.wait(timeout_s), "the model did not answer"
        assert not self.faults, self.faults
        assert self._reply is not None
        return self._reply

    def _as_reply(self, response: pb_utils.InferenceResponse) -> Reply:
        error = response.error()
        if error is not None:
            return Reply(_HTTP_STATUS.get(error.code(), 500), error.message())
        outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        self.faults += triton_checks.output_faults(self._config, outputs, self._num_rows())
        wanted = self._request.outputs or tuple(outputs)
        return Reply(
            200, outputs={name: _on_the_wire(outputs[name]) for name in outputs if name in wanted}
        )

    def _num_rows(self) -> int | None:
        if not self._config.max_batch_size:
            return None
        return int(next(iter(self._request.tensors.values())).shape[0])


class StubServer:
    """One instance of a model from a generated repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = folder / "config.pbtxt"
        self.config: Any = model_config.parse(config.read_text(encoding="utf-8"))
        self.model: Any = None
        self._execute_lock = threading.Lock()

    def __enter__(self) -> StubServer:
        self.load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.unload()

    def load(self) -> None:
        """Imports the task's model.py and initializes it; raises what it raises."""
        values = json.loads((self.folder / "1" / "model.json").read_text(encoding="utf-8"))
        module = importlib.import_module(f"{values['task'].replace('-', '_')}.model")
        model = module.TritonPythonModel()
        model.initialize(self._arguments())
        self.model = model

    def unload(self) -> None:
        """Finalizes the model, which may be left out in a model.py."""
        model, self.model = self.model, None
        if hasattr(model, "finalize"):
            model.finalize()

    def send_together(self, requests: Sequence[Request], request_id: str = "") -> list[Pending]:
        """Passes on requests in one ``execute``; those that Triton refuses are answered at once."""
        pending = [Pending(self.config, request) for request in requests]
        passed: list[tuple[Pending, pb_utils.InferenceRequest]] = []
        for waiting, request in zip(pending, requests, strict=True):
            refusal = triton_checks.refusal(self.config, request)
            if refusal is not None:
                waiting.settle(Reply(400, refusal))
            else:
                passed.append((waiting, self._request(request, waiting, request_id)))
        if passed:
            self._execute(passed)
        return pending

    def send(self, request: Request) -> Pending:
        """Passes on one request."""
        return self.send_together([request])[0]

    def infer(self, request: Request) -> Reply:
        """``/infer`` and gRPC."""
        return self.send(request).reply()

    def generate(self, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        """``/generate``: status and body. Any error of a model is a 400 there (24.10)."""
        try:
            request = flat_json.read(self.config, flat_json.body_bytes(body))
        except flat_json.FlatJsonError as error:
            return error.status, {"error": str(error)}
        reply = self.infer(request)
        if not reply.ok:
            return 400, {"error": reply.error}
        return reply.status, flat_json.write(self.config, reply)

    def _execute(self, passed: list[tuple[Pending, pb_utils.InferenceRequest]]) -> None:
        with self._execute_lock:  # one thread calls an instance's execute
            try:
                responses = self.model.execute([request for _, request in passed])
            except Exception as error:  # noqa: BLE001, Triton answers all of the batch with the exception
                for waiting, _ in passed:
                    waiting.settle(Reply(500, f"Failed to process the request(s): {error}"))
                return
        for index, (waiting, request) in enumerate(passed):
            if responses is not None:
                waiting.deliver(responses[index], pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            elif not request.sender_taken:
                waiting.faults.append("execute returned None and took no response sender")

    def _request(
        self, request: Request, pending: Pending, request_id: str
    ) -> pb_utils.InferenceRequest:
        tensors = [pb_utils.Tensor(name, array) for name, array in request.tensors.items()]
        names = request.outputs or [output.name for output in self.config.output]
        return pb_utils.InferenceRequest(
            tensors, request.parameters, names, pending.deliver, request_id
        )

    def _arguments(self) -> dict[str, str]:
        config = json_format.MessageToDict(self.config, preserving_proto_field_name=True)
        for group in config.get("instance_group", []):
            group["kind"] = "KIND_CPU"  # what KIND_AUTO becomes without a GPU
        return {
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
            "model_instance_name": f"{self.config.name}_0_0",
            "model_repository": str(self.folder),
            "model_version": "1",
            "model_name": self.config.name,
        }


def _on_the_wire(array: Array) -> Array:
    """Texts travel as bytes, whatever the model made them of."""
    if array.dtype.kind != "O":
        return array
    flat = [x.encode() if isinstance(x, str) else x for x in array.flat]
    return np.array(flat, dtype=np.object_).reshape(array.shape)
