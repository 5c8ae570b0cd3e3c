"""A request, whichever process it came from: what tasks, hooks, arms and the link pass on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from hf_triton.tracing.trace import Trace
from hf_triton.tracing.triton import traceparent_of

from .request_parameters import CALL, Call, call_in, read_parameters
from .responder import Array, Responder, TritonResponder, attempt


@dataclass(frozen=True)
class Request:
    """``inputs`` are arrays of its own; texts are objects of bytes. ``outputs`` are those asked
    for. ``call`` is what a port says of the request. ``may_stream``: its caller takes several
    responses. ``is_routed``: another model's routing chose this one, which routes it no further.
    """

    inputs: Mapping[str, Array]
    parameters: Mapping[str, Any]
    responder: Responder
    outputs: Sequence[str] = ()
    call: Call | None = None
    may_stream: bool = False
    is_routed: bool = False

    @classmethod
    def read(
        cls, inputs: Mapping[str, Array], parameters: str, responder: Responder, **more: Any
    ) -> Request:
        """``parameters`` are a JSON object, or empty; ``more`` are other fields."""
        call = call_in(parameters, more.pop("traceparent", ""))
        return cls(inputs, read_parameters(parameters), responder, call=call, **more)

    @property
    def trace(self) -> Trace | None:
        return self.call and self.call.trace

    def written_parameters(self) -> str:
        """The request's parameters as JSON, from which ``read`` reads them."""
        call = {} if self.call is None else {CALL: self.call.text}
        return json.dumps({**self.parameters, **call})

    @property
    def num_bytes(self) -> int:
        texts = [array.ravel().tolist() for array in self.inputs.values() if array.dtype == "O"]
        parameters = [value for value in self.parameters.values() if isinstance(value, str)]
        return sum(map(len, [*chain.from_iterable(texts), *parameters]))


def take_each(
    requests: Iterable[Any],
    pb_utils: Any,
    take: Callable[[Request], None],
    *,
    may_stream: bool = False,
) -> None:
    """Passes Triton's requests on, or answers them with what ``take`` raises."""

    def read_and_take(request: Any, responder: Responder) -> None:
        # Copies: Triton frees its tensors after ``execute``.
        inputs = {one.name(): one.as_numpy().copy() for one in request.inputs()}
        more = {"outputs": request.requested_output_names(), "may_stream": may_stream}
        more |= {"traceparent": traceparent_of(request)}
        take(Request.read(inputs, request.parameters(), responder, **more))

    for request in requests:
        responder = TritonResponder(request, pb_utils, decoupled=may_stream)
        attempt(responder, read_and_take, request, responder)
