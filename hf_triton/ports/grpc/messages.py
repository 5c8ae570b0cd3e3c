"""Inference requests of gRPC, checked before tritonserver reads them; knows no connection.

A message becomes many times its size where it is parsed, so a large one is first looked through
without that: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from hf_triton.ports.bodies import MAX_ENTRIES, check_count
from hf_triton.ports.refusal import RefusedError
from hf_triton.runtime.request.request_parameters import CALLER

MAX_TEXTS = 16_384  # of one tensor outside raw_input_contents: each becomes 40 bytes of Triton's
MAX_HEAD_BYTES = 1 << 20  # all but tensors' data
# Each byte or two of a smaller message may be an entry of its own.
_SMALL_BYTES = 2 * MAX_TEXTS
# Triton multiplies a shape's sizes in 64 bits: past them a huge tensor passes for a small one, and
# the model's process, which makes room for it, dies.
_MAX_ELEMENTS = 2**40
# Fields of ModelInferRequest and of its inputs; the others of both are small.
_INPUTS, _RAW_INPUT_CONTENTS = 5, 7
_CONTENTS = 5
_MAX_FIELDS = 4 * MAX_ENTRIES
_VARINT, _BYTES = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_LONGEST_VARINT = 10
_NOT_ONE = "got bytes that are not a ModelInferRequest"
_RATHER_RAW = "; send its data as raw_input_contents"


def checked(message: bytes) -> tuple[str, list[str]]:
    """The model that a ModelInferRequest asks, and the outputs that it wants classified. Raises
    RefusedError for a request that tritonserver could fail at, or that says itself who sends it.
    """
    is_small = len(message) <= _SMALL_BYTES
    parse = service_pb2.ModelInferRequest.FromString if is_small else _without_data
    try:
        request = parse(message)
    except DecodeError:
        raise RefusedError(400, _NOT_ONE) from None
    for field in ("inputs", "outputs", "raw_input_contents", "parameters"):
        check_count(len(getattr(request, field)), field)
    _check_names(request)
    if CALLER in request.parameters:
        raise RefusedError(400, f"parameters: got '{CALLER}', which only the server itself may set")
    for index, tensor in enumerate(request.inputs):
        check_count(len(tensor.parameters), f"inputs[{index}].parameters")
        _check_shape(tensor.shape, f"inputs[{index}].shape")
    for index, output in enumerate(request.outputs):
        check_count(len(output.parameters), f"outputs[{index}].parameters")
    return request.model_name, [
        output.name for output in request.outputs if "classification" in output.parameters
    ]


def model_of(message: bytes) -> str:
    """The model of a question about one: all name it in their first field."""
    try:
        return str(service_pb2.ModelReadyRequest.FromString(message[:_SMALL_BYTES]).name)
    except DecodeError:
        return ""


def _check_names(request: service_pb2.ModelInferRequest) -> None:
    """Triton reads a name, and a parameter's text, up to its first zero byte, and so another one
    than is checked here, or than another caller has sent.
    """
    texts = [request.model_name, request.model_version, request.id]
    texts += (text for tensor in request.inputs for text in (tensor.name, tensor.datatype))
    texts += (output.name for output in request.outputs)
    for holder in (request, *request.inputs, *request.outputs):
        texts += holder.parameters
        texts += (value.string_param for value in holder.parameters.values())
    if any("\0" in text for text in texts):
        raise RefusedError(400, "got a name or a parameter with a zero byte in it")


def _check_shape(shape: list[int], where: str) -> None:
    check_count(len(shape), where)
    if min(shape, default=0) < 0 or math.prod(size or 1 for size in shape) > _MAX_ELEMENTS:
        raise RefusedError(400, f"{where}: got {str(list(shape))[:100]}, not a tensor's shape")


def _without_data(message: bytes) -> service_pb2.ModelInferRequest:
    """A large request, parsed but for its tensors' data. Raises RefusedError, DecodeError."""
    rest, heads, num_raw = list[bytes](), list[bytes](), 0
    for number, start, inner, end in _fields(message, 0, len(message), "the message", _MAX_FIELDS):
        if number == _INPUTS:
            heads.append(_input_without_data(message, inner, end))
        elif number == _RAW_INPUT_CONTENTS:
            num_raw += 1
        else:
            rest.append(message[start:end])
    size = sum(map(len, (*rest, *heads)))
    if size > MAX_HEAD_BYTES:
        text = f"got {size} bytes besides the tensors' data, allowed: {MAX_HEAD_BYTES}"
        raise RefusedError(400, text)
    request = service_pb2.ModelInferRequest.FromString(b"".join(rest))
    for head in heads:
        request.inputs.add().MergeFromString(head)
    request.raw_input_contents.extend([b""] * num_raw)
    return request


def _input_without_data(message: bytes, place: int, end: int) -> bytes:
    pieces = []
    for number, start, inner, stop in _fields(message, place, end, "an input", _MAX_FIELDS):
        if number != _CONTENTS:
            pieces.append(message[start:stop])
            continue
        for _ in _fields(message, inner, stop, "contents", MAX_TEXTS, _RATHER_RAW):
            pass
    return b"".join(pieces)


def _fields(
    message: bytes, place: int, end: int, where: str, most: int, advice: str = ""
) -> Iterator[tuple[int, int, int, int]]:
    """Each field's number, its start, the start of its value and its end. Raises RefusedError."""
    for _ in range(most):
        if place == end:
            return
        start = place
        tag, inner = _read_varint(message, place)
        kind = tag & 7
        if kind == _BYTES:
            length, inner = _read_varint(message, inner)
            place = inner + length
        elif kind == _VARINT:
            place = _read_varint(message, inner)[1]
        else:
            place = inner + _FIXED_BYTES.get(kind, len(message))  # nothing of Triton's has groups
        if place > end:
            raise RefusedError(400, f"{where}: {_NOT_ONE}")
        yield tag >> 3, start, inner, place
    if place != end:
        raise RefusedError(400, f"{where}: got more than {most} fields{advice}")


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """The number at ``place``, and where it ends."""
    byte = message[place] if place < len(message) else 0x80
    if byte < 0x80:
        return byte, place + 1
    value = 0
    for index, byte in enumerate(message[place : place + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise RefusedError(400, _NOT_ONE)
