"""A request on its way over the link: what one end writes into a frame and the other reads.

Knows nothing of connections, and nothing of what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import RequestError
from . import protocol
from .protocol import Array, Frame, FrameTooLargeError, LinkError

_KINDS = {
    "inputs": dict,
    "parameters": str,
    "outputs": list,
    "request_id": str,
    "may_stream": bool,
    "is_routed": bool,
}


@dataclass(frozen=True)
class LinkRequest:
    """``parameters`` is a JSON object, ``outputs`` are those that the caller asked for.

    ``may_stream`` where the caller takes several responses. ``is_routed`` where the request is an
    arm's share of another model's: whoever gets it answers it itself.
    """

    inputs: Mapping[str, Array]
    parameters: str
    outputs: Sequence[str]
    request_id: str = ""
    may_stream: bool = False
    is_routed: bool = False

    def encode(self, number: int) -> bytes:
        """As it travels, under a number of its connection. Raises RequestError: it is too large."""
        inputs = {name: protocol.pack_tensor(array) for name, array in self.inputs.items()}
        frame = {
            "kind": "request",
            "id": number,
            "inputs": inputs,
            "parameters": self.parameters,
            "outputs": list(self.outputs),
            "request_id": self.request_id,
            "may_stream": self.may_stream,
            "is_routed": self.is_routed,
        }
        try:
            return protocol.encode(frame)
        except FrameTooLargeError as error:
            raise RequestError(f"the request: got {error}") from None


def read_request(frame: Frame) -> LinkRequest:
    """The request that a frame holds. Raises LinkError."""
    if not all(isinstance(frame.get(name), kind) for name, kind in _KINDS.items()):
        raise LinkError("a request lacks something")
    values = {name: frame[name] for name in _KINDS}
    packed = values.pop("inputs")
    inputs = {name: protocol.unpack_tensor(tensor) for name, tensor in packed.items()}
    return LinkRequest(inputs, **values)
