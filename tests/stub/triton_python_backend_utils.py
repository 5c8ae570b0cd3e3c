"""A stand-in for the module that Triton's Python backend gives to models, with its behaviour.

What a model may do wrong is refused here as there (python_backend, src/response_sender.cc and
src/pb_tensor.cc, in a real 24.10's words): a response after the FINAL flag, in default mode a
second response and a FINAL flag without a response, an array of no Triton data type, a counter that
counts down. Holds nothing that models here do not use.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from custom_metrics import MetricFamily
from triton_model_exception import TritonModelException

__all__ = [
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ResponseSender",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "get_input_tensor_by_name",
]

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

Array = npt.NDArray[Any]
ParameterValue = str | int | float | bool

_TRITON_TYPES = {
    "bool": "TYPE_BOOL",
    **{
        f"{kind}{bits}": f"TYPE_{kind.upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"TYPE_FP{bits}" for bits in (16, 32, 64)},
    "object": "TYPE_STRING",
}


class TritonError:
    """The error of one response: its text, and the code that decides the HTTP status."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = range(6)
    ALREADY_EXISTS, CANCELLED = 6, 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if code not in range(8):
            raise TritonModelException(f"unknown error code {code}")
        message.encode()  # raises for half of a pair of surrogates, as Triton does
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Logger:
    """Keeps what models log, in order."""

    lines: ClassVar[list[str]] = []

    @classmethod
    def log_info(cls, message: str) -> None:
        cls.lines.append(f"I {message}")

    @classmethod
    def log_warn(cls, message: str) -> None:
        cls.lines.append(f"W {message}")

    @classmethod
    def log_error(cls, message: str) -> None:
        cls.lines.append(f"E {message}")


class Tensor:
    """A named array of one of Triton's data types; texts are objects of bytes or str."""

    def __init__(self, name: str, array: Array) -> None:
        if array.dtype.name not in _TRITON_TYPES:
            raise TritonModelException(f"{name}: {array.dtype.name} is no Triton data type")
        if array.dtype == np.object_ and not all(isinstance(x, bytes | str) for x in array.flat):
            raise TritonModelException(f"{name}: an object array may hold bytes and str only")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._array

    def triton_dtype(self) -> str:
        """As config.pbtxt names it, such as ``TYPE_STRING``."""
        return _TRITON_TYPES[self._array.dtype.name]


class InferenceResponse:
    """The answer to one request: output tensors or an error."""

    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        if not all(isinstance(tensor, Tensor) for tensor in output_tensors):
            raise TritonModelException("output_tensors must be Tensors")
        if error is not None and not isinstance(error, TritonError):
            raise TritonModelException("error must be a TritonError")
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class ResponseSender:
    """Takes a request's responses: exactly one in default mode, any number where ``decoupled``."""

    def __init__(
        self,
        deliver: Callable[[InferenceResponse | None, int], None],
        *,
        decoupled: bool = False,
        cancelled: threading.Event | None = None,
    ) -> None:
        self._deliver = deliver
        self._decoupled = decoupled
        self._cancelled = cancelled or threading.Event()
        self._lock = threading.Lock()
        self._num_sent = 0
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Sends a response, the FINAL flag, or both at once."""
        self._check(response, flags)
        with self._lock:
            self._check_state(response)
            self._closed = self._closed or flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
            self._num_sent += 1
            # Under the lock: Triton keeps the order in which a model's threads send.
            self._deliver(response, flags)

    def is_cancelled(self) -> bool:
        """True if the client has left. Asked after the last response it can kill a 24.10."""
        with self._lock:
            assert not self._closed, "is_cancelled() after the FINAL flag"
            return self._cancelled.is_set()

    def _check(self, response: InferenceResponse | None, flags: int) -> None:
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("send() takes an InferenceResponse")

    def _check_state(self, response: InferenceResponse | None) -> None:
        refused = "Unable to send response."
        if not self._decoupled and response is not None and self._num_sent:
            raise TritonModelException(
                f"{refused} Non-decoupled model cannot send more than one response."
            )
        if not self._decoupled and response is None and not self._num_sent:
            raise TritonModelException(
                f"{refused} Non-decoupled model cannot send complete final before sending a "
                "response."
            )
        if self._closed:
            raise TritonModelException(f"{refused} Response sender has been closed.")


class InferenceRequest:
    """An argument of a model's ``execute``; made by the stub server alone."""

    def __init__(
        self,
        inputs: Iterable[Tensor],
        parameters: Mapping[str, ParameterValue],
        requested_output_names: Iterable[str],
        sender: ResponseSender,
        request_id: str = "",
    ) -> None:
        self._inputs = {tensor.name(): tensor for tensor in inputs}
        self._parameters = json.dumps(dict(parameters))
        self._requested = list(requested_output_names)
        self._sender = sender
        self._request_id = request_id
        self.sender_taken = False

    def inputs(self) -> list[Tensor]:
        return list(self._inputs.values())

    def parameters(self) -> str:
        """A JSON object; NaN and infinities as Python writes them, as Triton does."""
        return self._parameters

    def requested_output_names(self) -> list[str]:
        """All outputs where the client asked for none in particular."""
        return list(self._requested)

    def request_id(self) -> str:
        return self._request_id

    def get_response_sender(self) -> ResponseSender:
        self.sender_taken = True
        return self._sender


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input of that name, or None."""
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)
