"""A request as it travels over the engine link: one end encodes it as a frame, the other decodes.

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
    """``parameters`` is a JSON object; ``outputs`` are the outputs that the caller asked for.

    ``may_stream``: the caller takes several responses. ``is_routed``: another model's routing chose
    this one, which must answer the request itself and route it no further.
    """

    inputs: Mapping[str, Array]
    parameters: str
    outputs: Sequence[str]
    request_id: str = ""
    may_stream: bool = False
    is_routed: bool = False

    def encode(self, number: int) -> bytes:
        """The frame; ``number`` tells the connection's requests apart. Raises RequestError: it is
        too large.
        """
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
    """The request in a frame. Raises LinkError."""
    if not all(isinstance(frame.get(name), kind) for name, kind in _KINDS.items()):
        raise LinkError("a request lacks something")
    values = {name: frame[name] for name in _KINDS}
    packed = values.pop("inputs")
    inputs = {name: protocol.unpack_tensor(tensor) for name, tensor in packed.items()}
    return LinkRequest(inputs, **values)
