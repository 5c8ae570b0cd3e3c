"""Damage to packed requests, by name: what Triton, or the model behind it, must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from perf.soak.request import HttpMessage

_DEEP = 400  # brackets; RapidJSON recurses, so many more would be an attack on Triton itself

Body = dict[str, Any]


def _first_input(**changes: Any) -> Callable[[Body], Body]:
    """Changes the first input of ``/infer``; None drops a key."""

    def change(body: Body) -> Body:
        first, *others = body["inputs"]
        first = {k: v for k, v in {**first, **changes}.items() if v is not None}
        return {**body, "inputs": [first, *others]}

    return change


def _more(**keys: Any) -> Callable[[Body], Body]:
    return lambda body: {**body, **keys}


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _more_inputs(*inputs: Any) -> Callable[[Body], Body]:
    return lambda body: {**body, "inputs": [*body["inputs"], *inputs]}


_UNDECLARED = {"name": "prompt", "datatype": "BYTES", "shape": [1], "data": ["a"]}
INFER_DAMAGE: dict[str, Callable[[Body], Body]] = {
    "shape of another rank": _first_input(shape=[1, 1, 1]),
    "negative shape": _first_input(shape=[-1]),
    "huge shape": _first_input(shape=[2**40]),
    "overflowing shape": _first_input(shape=[2**62, 2**62]),
    "shape of texts": _first_input(shape=["one"]),
    "empty shape": _first_input(shape=[]),
    "no shape": _first_input(shape=None),
    "no data": _first_input(data=None),
    "data of numbers": _first_input(data=[3]),
    "too much data": _first_input(data=["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]),
    "empty data": _first_input(data=[]),
    "nested data": _first_input(data=_nested(_DEEP)),
    "wrong data type": _first_input(datatype="INT32"),
    "unknown data type": _first_input(datatype="TEXT"),
    "no name": _first_input(name=None),
    "name of a number": _first_input(name=3),
    "undeclared input": _more_inputs(_UNDECLARED),
    "input that is a text": _more_inputs("text_input"),
    "inputs that are an object": _more(inputs={}),
    "inputs that are null": _more(inputs=None),
    "no inputs": lambda body: {k: v for k, v in body.items() if k != "inputs"},
    "undeclared output": _more(outputs=[{"name": "logits"}]),
    "outputs that are a text": _more(outputs="text_output"),
    "parameters that are a list": _more(parameters=[1]),
    "parameter that is an object": _more(parameters={"max_tokens": {"a": 1}}),
    "shared memory that is none": _first_input(
        data=None, parameters={"shared_memory_region": "none", "shared_memory_byte_size": 64}
    ),
    "binary data that is none": _first_input(data=None, parameters={"binary_data_size": 64}),
}
FLAT_DAMAGE: dict[str, Callable[[Body], Body]] = {
    "unknown key with a list": _more(anything=[1, 2]),
    "unknown key with an object": _more(anything={"a": 1}),
    "unknown key with null": _more(anything=None),
    "null for an option": _more(temperature=None),
    "object for an option": _more(temperature={"a": 1}),
    "text for a number": _more(max_tokens="three"),
    "boolean for a number": _more(max_tokens=True),
    "fraction for an integer": _more(max_tokens=2.5),
    "number too large": _more(max_tokens=2**31),
    "number far too large": _more(max_tokens=10**30),
    "number for a text": _more(text_input=3),
    "two texts": _more(text_input=["a", "b"]),
    "nested texts": _more(text_input=_nested(_DEEP)),
    "parameters that are a list": _more(parameters=[1]),
}
BODY_DAMAGE = {**INFER_DAMAGE, **FLAT_DAMAGE}


def _body(change: Callable[[bytes], bytes]) -> Callable[[HttpMessage], HttpMessage]:
    return lambda message: replace(message, body=change(message.body))


def _headers(*headers: str) -> Callable[[HttpMessage], HttpMessage]:
    return lambda message: replace(message, headers=headers)


def _json_length(length: str) -> Callable[[HttpMessage], HttpMessage]:
    return _headers(f"Inference-Header-Content-Length: {length}")


def _path(old: str, new: str) -> Callable[[HttpMessage], HttpMessage]:
    return lambda message: replace(message, path=message.path.replace(old, new))


@dataclass(frozen=True)
class HttpDamage:
    """What is changed, which statuses answer it, and the endpoint that it is meant for."""

    change: Callable[[HttpMessage], HttpMessage]
    allowed: tuple[int, ...] = (400,)
    way: str = ""


HTTP_DAMAGE: dict[str, HttpDamage] = {
    "cut JSON": HttpDamage(_body(lambda body: body[: len(body) // 2])),
    "no body": HttpDamage(_body(lambda _: b"")),
    "bytes that are no JSON": HttpDamage(_body(lambda _: bytes(range(256)))),
    "JSON list": HttpDamage(_body(lambda _: b"[1, 2]")),
    "JSON text": HttpDamage(_body(lambda _: b'"text_input"')),
    "JSON number": HttpDamage(_body(lambda _: b"1e400")),
    "deep JSON": HttpDamage(_body(lambda _: b"[" * _DEEP)),
    "NaN": HttpDamage(_body(lambda body: body[:-1] + b', "temperature": NaN}'), way="generate"),
    "two documents": HttpDamage(_body(lambda body: body + body)),
    "single quotes": HttpDamage(_body(lambda body: body.replace(b'"', b"'"))),
    "UTF-16": HttpDamage(_body(lambda body: body.decode("utf-8", "replace").encode("utf-16"))),
    "unknown model": HttpDamage(_path("/v2/models/", "/v2/models/no-"), (400, 404)),
    "unknown version": HttpDamage(_path("/infer", "/versions/7/infer"), (400, 404), "infer"),
    "version of a text": HttpDamage(_path("/infer", "/versions/one/infer"), (400, 404), "infer"),
    "unknown endpoint": HttpDamage(_path("/infer", "/inference"), (400, 404), "infer"),
    "GET": HttpDamage(lambda message: replace(message, method="GET"), (400, 404, 405)),
    "DELETE": HttpDamage(lambda message: replace(message, method="DELETE"), (400, 404, 405)),
    "no gzip": HttpDamage(_headers("Content-Encoding: gzip")),
    "JSON length too long": HttpDamage(_json_length("9999999"), way="infer"),
    "JSON length too short": HttpDamage(_json_length("5"), way="infer"),
    "JSON length of a text": HttpDamage(_json_length("five"), way="infer"),
}


def _set(**values: Any) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        for name, value in values.items():
            setattr(message, name, value)

    return change


def _set_raw(index: int, contents: bytes) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.raw_input_contents[index] = contents

    return change


def _set_shape(*shape: int) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[0].ClearField("shape")
        message.inputs[0].shape.extend(shape)

    return change


def _set_data_type(data_type: str) -> Callable[[Any], None]:
    def change(message: Any) -> None:
        message.inputs[0].datatype = data_type

    return change


def _drop_raw(message: Any) -> None:
    del message.raw_input_contents[0]


def _undeclared(message: Any) -> None:
    message.inputs.add(name="prompt", datatype="BYTES", shape=message.inputs[0].shape)
    message.raw_input_contents.append(message.raw_input_contents[0])


GRPC_DAMAGE: dict[str, Callable[[Any], None]] = {
    "unknown model": _set(model_name="no-such-model"),
    "no model": _set(model_name=""),
    "unknown version": _set(model_version="7"),
    "version of a text": _set(model_version="one"),
    "text that says it is longer": _set_raw(0, b"\xff\xff\xff\x7fabc"),
    "text without its length": _set_raw(0, b"ab"),
    "empty contents": _set_raw(0, b""),
    "contents missing": _drop_raw,
    "shape of another rank": _set_shape(1, 1, 1),
    "negative shape": _set_shape(-1),
    "huge shape": _set_shape(2**40),
    "overflowing shape": _set_shape(2**62, 2**62),
    "zero shape": _set_shape(0),
    "wrong data type": _set_data_type("FP32"),
    "unknown data type": _set_data_type("TEXT"),
    "undeclared input": _undeclared,
    "undeclared output": lambda message: message.outputs.add(name="logits"),
    "no inputs": lambda message: (
        message.ClearField("inputs"),
        message.ClearField("raw_input_contents"),
    )[0],
}
