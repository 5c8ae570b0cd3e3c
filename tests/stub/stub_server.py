"""Plays Triton's part for one generated model, in this process: no server, no sockets.

Reads the model's config.pbtxt, refuses what Triton refuses, hands requests to ``execute``, checks
what comes back against the config, and turns it into the reply that a client would see.
"""

from __future__ import annotations

import json
import runpy
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import triton_checks
import triton_python_backend_utils as pb_utils
from google.protobuf import json_format
from pending import Pending
from wire import Array, Reply, Request, strings

from generator.render import model_config

__all__ = ["Pending", "StubServer"]

# 24.10's words for what a decoupled model can't be asked for.
_NOT_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_NUMPY_TYPES: dict[str, Any] = {
    "TYPE_INT32": np.int32,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP32": np.float32,
    "TYPE_BOOL": np.bool_,
}


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
        """Runs the folder's model.py and initializes it; raises what it raises."""
        model = runpy.run_path(str(self.folder / "1" / "model.py"))["TritonPythonModel"]()
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

    @property
    def is_decoupled(self) -> bool:
        return bool(self.config.model_transaction_policy.decoupled)

    def infer(self, request: Request) -> Reply:
        """``/infer`` and unary gRPC, whose words for a decoupled model begin otherwise."""
        if self.is_decoupled:
            return Reply(501, _NOT_DECOUPLED)
        return self.send(request).reply()

    def stream(self, request: Request) -> Iterator[Reply]:
        """A gRPC stream: one reply for each response; an error is the last one.

        Its status is 400 whatever the error: a stream tells its text alone (24.10).
        """
        for reply in self.send(request).replies():
            yield reply if reply.ok else Reply(400, reply.error)

    def generate(self, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        """``/generate``: status and body."""
        status, [answer] = self.generate_stream(body)
        return status, answer

    def generate_stream(self, body: Mapping[str, Any] | bytes) -> tuple[int, list[dict[str, Any]]]:
        """``/generate_stream``: the status, which the first response decides, and the events.

        A key, also inside ``parameters``, that names an input is that tensor, any other a request
        parameter. Any error of a model is a 400 there (24.10).
        """
        read = json.loads(body) if isinstance(body, bytes) else body
        given = {**read, **read.get("parameters", {})}
        given.pop("parameters", None)
        declared = {tensor.name: tensor for tensor in self.config.input}
        names = declared.keys() & given.keys()
        tensors = {name: self._tensor(declared[name], given.pop(name)) for name in names}
        replies = list(self.stream(Request(tensors, given)))
        return replies[0].status, [_event(reply) for reply in replies]

    def _tensor(self, declared: Any, value: Any) -> Array:
        """The values in the declared shape, whose last size takes all where it is -1."""
        values = value if isinstance(value, list) else [value]
        kind = _NUMPY_TYPES.get(model_config.type_word(declared))
        array = np.array(values, kind) if kind else strings(*values)
        shape = [*([1] if self.config.max_batch_size else []), *declared.dims]
        return array.reshape(shape)

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
            tensors, request.parameters, names, pending.sender, request_id
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


def _event(reply: Reply) -> dict[str, Any]:
    """Outputs at the top level, lists of one element unwrapped."""
    if not reply.ok:
        return {"error": reply.error}
    texts_or_numbers = {
        name: [one.decode() if isinstance(one, bytes) else one for one in array.flatten().tolist()]
        for name, array in reply.outputs.items()
    }
    return {name: one[0] if len(one) == 1 else one for name, one in texts_or_numbers.items()}
