"""A request as it travels over the engine link: one end encodes it as a frame, the other decodes.

Knows nothing of connections, and nothing of what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import RequestError
from ..request.plain_request import Tensor
from . import frames
from .frames import Array, Frame, FrameTooLargeError
from .protocol import LinkError

_MAY_STREAM, _IS_ROUTED = 1, 2


@dataclass(frozen=True)
class LinkRequest:
    """A RequestLike. ``parameter_text`` is a JSON object; ``outputs`` are those asked for.

    ``may_stream``: the caller takes several responses. ``is_routed``: another model's routing chose
    this one, which must answer the request itself and route it no further.
    """

    inputs: Mapping[str, Array]
    parameter_text: str
    outputs: Sequence[str]
    request_id: str = ""
    may_stream: bool = False
    is_routed: bool = False

    def parameters(self) -> str:
        return self.parameter_text

    def tensor(self, name: str) -> Tensor | None:
        array = self.inputs.get(name)
        return None if array is None else Tensor(array)

    def encode(self, number: int) -> bytes:
        """The frame; ``number`` tells the connection's requests apart. Raises RequestError: it is
        too large.
        """
        flags = self.may_stream * _MAY_STREAM | self.is_routed * _IS_ROUTED
        texts = (self.request_id, self.parameter_text, *self.outputs)
        try:
            return frames.encode(Frame(frames.REQUEST, number, flags, texts, self.inputs))
        except FrameTooLargeError as error:
            raise RequestError(f"the request: got {error}") from None


def read_request(frame: Frame) -> LinkRequest:
    """The request in a frame. Raises LinkError."""
    if len(frame.texts) < 2:
        raise LinkError("a request lacks something")
    request_id, parameters, *outputs = frame.texts
    may_stream, is_routed = bool(frame.flags & _MAY_STREAM), bool(frame.flags & _IS_ROUTED)
    return LinkRequest(frame.tensors, parameters, outputs, request_id, may_stream, is_routed)
