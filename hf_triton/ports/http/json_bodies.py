"""JSON bodies as tritonserver gets them: read whole, within bounds, and written anew.

What Triton parses is what was checked here: a key that comes twice, or is written with escapes,
means one thing to one parser and another to the next. Data of tensors is copied as it came.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec

from hf_triton.ports.bodies import MAX_ENTRIES, check_count
from hf_triton.ports.refusal import RefusedError
from hf_triton.runtime.request.request_parameters import CALL, CALLER

# Each takes 16 bytes of Triton's parser; more is better sent as binary data.
MAX_VALUES = 8_388_608
# Triton makes room for a tensor before it looks for its data; shared memory has its own bounds.
_MAX_SHARED_ELEMENTS = 2**40
_OWN = {CALLER, CALL}  # parameters that only the proxy sends
# Triton reads names, and texts of parameters, up to their first zero byte: two different ones would
# be one.
_WITH_ZERO_BYTE = "got a text with a zero byte in it"
_NOT_A_TEXT = re.compile(r"Expected `str` matching regex '.*?'")  # msgspec's words for it
_EMPTY_LIST = re.compile(rb"\[\s*\]")
_BINARY_SIZE = "binary_data_size"
_SHARED_MEMORY = "shared_memory_region"
_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?(?:/([a-z_]+))?/?")
_TOO_DEEP = "the body: got JSON that is nested too deep"
# A number that may be too large for a float, once its digits are 0 and its E is e.
_HUGE_EXPONENTS, _HUGE_DIGITS = (b"0e000", b"0e+000"), b"0" * 309
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
# In what was written anew; a text's own quotes are escaped.
_TIMEOUT_MS = re.compile(rb'"timeout_ms"\s*(?::\s*|,[^{}]*"data"\s*:[\s[]*)(\d{1,15})(?![\d.])')

Raw = msgspec.Raw
Unset = msgspec.UnsetType
_UNSET = msgspec.UNSET
_FEW = msgspec.Meta(max_length=MAX_ENTRIES)
Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
Parameters = Annotated[dict[Text, Text | int | float | bool | None], _FEW]
Shape = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], _FEW]


class Input(msgspec.Struct, omit_defaults=True):
    """An input tensor of /infer: ``data`` as it came, none where it is binary."""

    name: Text
    datatype: Text
    shape: Shape
    parameters: Parameters | Unset | None = _UNSET
    data: Raw | Unset = _UNSET


class Output(msgspec.Struct, omit_defaults=True):
    """An output tensor that /infer asks for."""

    name: Text
    parameters: Parameters | Unset | None = _UNSET


class InferRequest(msgspec.Struct, omit_defaults=True):
    """The body of /infer, up to its binary data.

    https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/
    inference_rest.md#inference-request-json-object
    """

    inputs: Annotated[list[Input], _FEW]
    id: Text | Unset | None = _UNSET
    parameters: Parameters | Unset | None = _UNSET
    outputs: Annotated[list[Output], _FEW] | Unset | None = _UNSET


_INFER = msgspec.json.Decoder(InferRequest)
_OBJECT = msgspec.json.Decoder(dict[Text, Raw])
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


def model_and_endpoint(path: str) -> tuple[str, str]:
    """The model of a path, and the endpoint, such as ``infer``; "" for its metadata. Both are ""
    where the path has no model.
    """
    match = _MODEL_PATH.fullmatch(unquote(path))
    return (match[1], match[2] or "") if match else ("", "")


def timeout_s_of(request: bytes) -> float:
    """The timeout in a request that was written anew, in seconds."""
    found = _TIMEOUT_MS.search(request)
    return int(found[1]) / 1000 if found else math.inf


def checked_infer(head: bytes, num_bytes: int, **own: str) -> tuple[bytes, list[str]]:
    """Writes the JSON of /infer anew; returns it and the outputs to be classified. ``num_bytes`` is
    the size of the whole body, binary data included; ``own`` are parameters that only the proxy
    sends. Raises RefusedError.
    """
    _check_size(head)
    request = _decoded(_INFER, head)
    for tensor in request.inputs:
        _check_shape(tensor, num_bytes)
        _check_binary(tensor, num_bytes)
    given = request.parameters or {}
    if own or not _OWN.isdisjoint(given):
        rest = {key: value for key, value in given.items() if key not in _OWN}
        request.parameters = {**rest, **own}
    classified = [
        one.name for one in request.outputs or () if "classification" in (one.parameters or ())
    ]
    return _ENCODER.encode(request), classified


def checked_generate(body: bytes, **own: str) -> bytes:
    """Writes the body of /generate anew without empty lists: from 26.04 on Triton refuses one for a
    tensor. ``own`` are parameters that only the proxy sends. Raises RefusedError.
    """
    fields = {
        name: value
        for name, value in _checked_fields(body).items()
        if not _EMPTY_LIST.fullmatch(value)
    }
    fields |= {name: Raw(_ENCODER.encode(value)) for name, value in own.items()}
    return _ENCODER.encode(fields)


def checked_object(body: bytes) -> bytes:
    """A flat JSON object, written anew. Raises RefusedError."""
    return _ENCODER.encode(_checked_fields(body))


def _checked_fields(body: bytes) -> dict[str, Raw]:
    if not body:
        raise RefusedError(400, "the body: empty, expected a JSON object")
    _check_size(body)
    fields: dict[str, Raw] = _decoded(_OBJECT, body)
    for value in fields.values():
        _check_numbers(bytes(value))
    _check_fields("the body", fields, body)
    if "parameters" in fields and bytes(fields["parameters"]).lstrip()[:1] == b"{":
        parameters = _decoded(_OBJECT, bytes(fields["parameters"]))
        _check_fields("parameters", parameters, body)
        fields["parameters"] = Raw(_ENCODER.encode(parameters))
    return fields


def _check_fields(where: str, fields: dict[str, Raw], body: bytes) -> None:
    """Raises RefusedError for too many or wrong ones; those that only the proxy sends go."""
    check_count(len(fields), where)
    # JSON has no other way to write a zero byte; a backslash is found ten times as fast.
    if b"\\" in body and rb"\u0000" in body:
        for name, value in fields.items():
            text = _decoded(_ANY, bytes(value))
            if isinstance(text, str) and "\0" in text:
                raise RefusedError(400, f"{name[:64]}: {_WITH_ZERO_BYTE}")
    for name in _OWN:
        fields.pop(name, None)


def checked_index(body: bytes) -> bytes:
    """The body of a question for the repository's index, written anew. Raises RefusedError."""
    ready = _decoded(_OBJECT, body).get("ready")
    if ready is not None and bytes(ready) not in (b"true", b"false"):
        raise RefusedError(400, "ready: got another value, allowed: true or false")
    return checked_object(body)


def _check_size(body: bytes) -> None:
    if len(body) < MAX_VALUES:  # counting 4 MiB takes 2 ms
        return
    num_values = body.count(b",") + 1
    if num_values > MAX_VALUES:
        got = f"got {num_values} values in JSON, allowed: {MAX_VALUES}"
        raise RefusedError(400, f"the body: {got}; send large tensors as binary data")


def _check_shape(tensor: Input, num_bytes: int) -> None:
    shared = tensor.parameters and _SHARED_MEMORY in tensor.parameters
    allowed = _MAX_SHARED_ELEMENTS if shared else num_bytes
    if math.prod(size or 1 for size in tensor.shape) > allowed:
        got = f"input '{tensor.name[:64]}': got shape {str(tensor.shape)[:100]}"
        raise RefusedError(400, f"{got}, but not data of that size")


def _check_binary(tensor: Input, num_bytes: int) -> None:
    size = (tensor.parameters or {}).get(_BINARY_SIZE, 0)
    if not (type(size) is int and 0 <= size <= num_bytes):
        got = f"input '{tensor.name[:64]}': got {_BINARY_SIZE} {str(size)[:32]}"
        raise RefusedError(400, f"{got}, allowed: 0 to {num_bytes}, the size of the body")


def _check_numbers(value: bytes) -> None:
    """Raises RefusedError for a number beyond 64-bit floats, to which Triton answers 500."""
    if value.startswith(b'"'):
        return
    zeros = value.translate(_AS_ZEROS)
    huge = _HUGE_EXPONENTS if b"e" in zeros else ()
    if not any(digits in zeros for digits in (*huge, _HUGE_DIGITS)):
        return

    def finite(text: str) -> float:
        if math.isinf(value := float(text)):
            raise RefusedError(400, f"the body: got the number {text[:20]}, allowed: 64-bit floats")
        return value

    try:
        json.loads(value, parse_float=finite, parse_int=finite)
    except RecursionError:
        raise RefusedError(400, _TOO_DEEP) from None


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        if not body.isascii():
            body.decode()  # what is copied as it came, too
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        text = _NOT_A_TEXT.sub(_WITH_ZERO_BYTE, str(error))
        raise RefusedError(400, f"the body: {text}") from None
    except RecursionError:
        raise RefusedError(400, _TOO_DEEP) from None
    except UnicodeDecodeError:
        raise RefusedError(400, "the body: got JSON that is not UTF-8") from None
