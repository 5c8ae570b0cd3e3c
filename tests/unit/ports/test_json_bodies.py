"""JSON on its way to tritonserver: what goes on, and what does not."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hf_triton.ports.bodies import MAX_ENTRIES
from hf_triton.ports.http.json_bodies import (
    MAX_VALUES,
    checked_generate,
    checked_infer,
    checked_object,
    model_and_endpoint,
)
from hf_triton.ports.refusal import RefusedError
from hf_triton.runtime.request.request_parameters import CALL, CALLER

TENSOR = {"name": "x", "datatype": "INT32", "shape": [2], "data": [1, 2]}


def infer(**changes: Any) -> bytes:
    return json.dumps({"inputs": [TENSOR], **changes}).encode()


def tensor(**changes: Any) -> bytes:
    return infer(inputs=[{**TENSOR, **changes}])


SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 1 << 32}
GOES_ON: dict[str, dict[str, Any]] = {
    "parameters": {"id": "7", "parameters": {"max_tokens": 5, "big": 2**63, "a": "\\u0000"}},
    "outputs": {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    "inputs": {"inputs": [{**TENSOR, "parameters": {"b": True}}, {**TENSOR, "shape": [0, 3]}]},
    "null": {"parameters": None, "outputs": None, "id": None},
    "memory that is shared": {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1 << 30], "parameters": SHARED}]
    },
    "a zero byte in data": {"inputs": [{**TENSOR, "shape": [1], "data": ["a\0b"]}]},
}


@pytest.mark.parametrize("asked", GOES_ON.values(), ids=GOES_ON)
def test_a_request_goes_on_with_all_that_it_says(asked: dict[str, Any]) -> None:
    body = infer(**asked)
    head, classified = checked_infer(body, len(body))
    assert (json.loads(head), classified) == (json.loads(body), [])


def test_data_is_copied_byte_by_byte() -> None:
    data = b'[1.50, 1e0, "\\u00e9\\ud83d\\ude00", "\xc3\xa9"]'
    body = b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[4],"data":' + data + b"}]}"
    assert checked_infer(body, len(body))[0] == body


@pytest.mark.parametrize(
    "shape", [[10_000_000_000], [-1], [2**32, 2**32], [0, 10_000_000_000], [1] * 1000, [10**30]]
)
def test_a_shape_without_that_much_data_is_refused(shape: list[int]) -> None:
    body = tensor(shape=shape)
    with pytest.raises(RefusedError, match=r"input 'x': got shape|`\$\.inputs\[0\]\.shape"):
        checked_infer(body, len(body))


@pytest.mark.threat("request-smuggling")
@pytest.mark.parametrize("key", ['"shape"', '"sh\\u0061pe"'])
def test_a_key_that_comes_twice_means_what_was_checked(key: str) -> None:
    twice = f'{{"name":"x","datatype":"INT32",{key}:[10000000000],"shape":[2],"data":[1,2]}}'
    body = f'{{"inputs":[{twice}]}}'.encode()
    sent = checked_infer(body, len(body))[0]
    assert b"10000000000" not in sent
    assert json.loads(sent)["inputs"] == [TENSOR]
    flat = b'{"a": "x", "parameters": {"n": 1, "n": 2}, "a": "y", "list": [1, 2]}'
    assert checked_object(flat) == b'{"a":"y","parameters":{"n":2},"list":[1, 2]}'


@pytest.mark.parametrize(
    "body, expected",
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b"text_input=x", "malformed"),
        (b'{"inputs": 1}', r"\$\.inputs"),
        (b'{"inputs": [{}]}', r"missing required field .* `\$\.inputs\[0\]`"),
        (b'{"inputs": [{"name":"x","datatype":"INT32","shape":["1"]}]}', r"shape\[0\]"),
        (b'{"inputs":' + b"[" * 100_000, "Expected|nested too deep"),
        (tensor(data=0).replace(b": 0}", b": " + b"[" * 40_000 + b"]" * 40_000 + b"}"), "nested"),
        ('{"inputs": []}'.encode("utf-16"), "UTF-8"),
        (tensor(name="_").replace(b"_", b"\xff"), "UTF-8"),
        (infer(inputs=[TENSOR] * (MAX_ENTRIES + 1)), f"length <= {MAX_ENTRIES} - at `\\$.inputs`"),
        (
            infer(parameters={str(i): i for i in range(60_000)}),
            f"length <= {MAX_ENTRIES} - at `\\$.parameters`",
        ),
        (infer(parameters={"nested": [[]]}), r"parameters"),
        (b'{"inputs": [' + b"1," * MAX_VALUES + b"1]}", "values in JSON"),
    ],
)
def test_what_triton_could_not_read_is_refused(body: bytes, expected: str) -> None:
    with pytest.raises(RefusedError, match=expected) as caught:
        checked_infer(body, len(body))
    assert caught.value.status == 400


@pytest.mark.threat("alike-salts")
@pytest.mark.parametrize(
    "body, where",
    [
        (infer(id="a\0b"), "`$.id`"),
        (infer(parameters={"cache_salt": "T\0A"}), "`$.parameters[...]`"),
        (infer(parameters={"cache_salt\0x": "T"}), "`key` in `$.parameters`"),
        (tensor(name="x\0y"), "`$.inputs[0].name`"),
        (tensor(datatype="INT32\0"), "`$.inputs[0].datatype`"),
        (tensor(parameters={"region": "a\0b"}), "`$.inputs[0].parameters[...]`"),
        (infer(outputs=[{"name": "y"}, {"name": "y\0z"}]), "`$.outputs[1].name`"),
    ],
)
def test_what_triton_would_read_another_text_in_is_refused(body: bytes, where: str) -> None:
    told = f"the body: got a text with a zero byte in it - at {where}"
    with pytest.raises(RefusedError, match=f"^{re.escape(told)}$"):
        checked_infer(body, len(body))


@pytest.mark.threat("alike-salts")
@pytest.mark.parametrize(
    "fields, where",
    [
        ({"a": "x\0y"}, "a"),
        ({"parameters": {"b": "\0"}}, "b"),
    ],
)
def test_a_field_of_generate_with_a_zero_byte_is_refused(
    fields: dict[str, object], where: str
) -> None:
    with pytest.raises(RefusedError, match=f"^{where}: got a text with a zero byte in it$"):
        checked_generate(json.dumps(fields).encode())


@pytest.mark.threat("alike-salts")
@pytest.mark.parametrize("fields", [{"a\0b": 1}, {"parameters": {"\0": 1}}])
def test_a_name_of_a_field_with_a_zero_byte_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(
        RefusedError, match=r"^the body: got a text with a zero byte in it - at `key"
    ):
        checked_generate(json.dumps(fields).encode())


def test_a_list_of_texts_and_an_escaped_zero_byte_go_on() -> None:
    body = json.dumps({"b": "\\u0000", "c": ["x\0"], "d": 1}).encode()
    assert json.loads(checked_generate(body)) == json.loads(body)


@pytest.mark.threat("alike-salts")
@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00", b"\xff", b"\xed\xa0\x80"])
def test_what_is_no_text_of_unicode_is_refused(text: bytes) -> None:
    for body in (b'{"a":"%b"}' % text, b'{"parameters":{"a":"%b"}}' % text):
        with pytest.raises(RefusedError, match="the body: "):
            checked_object(body)


@pytest.mark.parametrize("place", ["top", "parameters"])
def test_too_many_keys_are_refused(place: str) -> None:
    many = {str(index): index for index in range(60_000)}
    body = json.dumps(many if place == "top" else {"parameters": many}).encode()
    with pytest.raises(RefusedError, match="got 60000 entries, allowed: 256"):
        checked_object(body)


@pytest.mark.threat("callers-name")
def test_only_the_proxy_names_a_caller_to_a_model() -> None:
    """A name in another case is read beside it, see tests/unit/requests/test_response_cache.py."""
    asked = infer(parameters={CALLER: "somebody else", "a": 1})
    for own in ({}, {CALLER: "me"}):
        sent = json.loads(checked_infer(asked, len(asked), **own)[0])
        assert sent["parameters"] == {"a": 1, **own}
    flat = json.dumps(
        {CALLER: "x", CALL: "x", "parameters": {CALLER: "x", CALL: "x", "a": 1}}
    ).encode()
    assert json.loads(checked_object(flat)) == {"parameters": {"a": 1}}
    own = {CALLER: "me"}
    assert json.loads(checked_generate(flat, **own)) == {"parameters": {"a": 1}, **own}


def test_an_empty_list_for_a_tensor_is_left_out() -> None:
    """From 26.04 on Triton answers one with a 400."""
    body = b'{"a": "x", "b": [ \n], "c": [[]], "d": "[]", "parameters": {"e": 1}, "f":[]}'
    assert list(json.loads(checked_generate(body))) == ["a", "c", "d", "parameters"]
    body = b'{"a":"1e999","b":1e308,"c":1e-999}'
    assert checked_generate(body) == body
    assert json.loads(checked_object(body)) == json.loads(body)


@pytest.mark.parametrize(
    "path, model, endpoint",
    [
        ("/v2/models/m/infer", "m", "infer"),
        ("/v2/models/m/versions/1/generate_stream", "m", "generate_stream"),
        ("/v2/models/a%2Fb/%69nfer", "", ""),
        ("/v2/models/m/%69nfer", "m", "infer"),
        ("/v2/models/m", "m", ""),
        ("/v2/models/m/versions/1/", "m", ""),
        ("/v2/repository/index", "", ""),
    ],
)
def test_what_is_asked_of_a_model(path: str, model: str, endpoint: str) -> None:
    assert model_and_endpoint(path) == (model, endpoint)


@pytest.mark.parametrize("number", ["1e999", "-1e309", "1" * 400, "[0.5, 2E+400]"])
def test_a_number_that_no_float_holds_is_refused(number: str) -> None:
    """Triton answers one, and a body of nothing, with a 500."""
    with pytest.raises(RefusedError, match="the body: empty, expected a JSON object"):
        checked_generate(b"")
    with pytest.raises(RefusedError, match="allowed: 64-bit floats"):
        checked_generate(f'{{"a": {number}}}'.encode())
