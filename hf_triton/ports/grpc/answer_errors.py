"""The error that an answer of tritonserver's consists of."""

from __future__ import annotations

from urllib.parse import unquote

import hpack
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from hf_triton.ports.grpc import frames as h2
from hf_triton.ports.grpc.message_relay import PREFIX_BYTES

_MAX_BYTES = 4096
_ERROR_MESSAGE = b"\x0a"  # field 1 of a ModelStreamInferResponse, a text


def error_in(frame: h2.Frame) -> str:
    """The text of an error that is all of an answer, or the first message of a stream; "" where
    the frame is something else. Heads refer to none before (frames.py).
    """
    kind, flags, _, whole = frame
    data = h2.payload_of(flags, whole) if kind in (h2.HEADERS, h2.DATA) else b""
    if kind == h2.HEADERS:
        return _of_head(data)
    return error_of(data) if kind == h2.DATA else ""


def error_of(message: bytes) -> str:
    """The text of a message of a stream, with its prefix, that is an error."""
    is_error = message[PREFIX_BYTES:][:1] == _ERROR_MESSAGE and len(message) < _MAX_BYTES
    return _of_message(message[PREFIX_BYTES:]) if is_error else ""


def _of_head(block: bytes) -> str:
    try:
        headers = hpack.Decoder().decode(block, raw=True)
    except hpack.HPACKError:
        return ""
    found = [value for name, value in headers if name == b"grpc-message"]
    return unquote(found[0].decode("latin-1")) if found else ""


def _of_message(message: bytes) -> str:
    try:
        return str(service_pb2.ModelStreamInferResponse.FromString(message).error_message)
    except DecodeError:
        return ""
