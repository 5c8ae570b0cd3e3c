"""The frames of the engine link: any request arrives as it was sent, and nothing else is taken for
one.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from msgspec import msgpack

from hf_triton.runtime.link import frames
from hf_triton.runtime.link.frames import (
    Frame,
    FrameTooLargeError,
    encode_request,
    read_request,
)
from hf_triton.runtime.link.protocol import LinkError
from hf_triton.runtime.request.declared_tensor import DTYPES
from hf_triton.runtime.request.request import Request
from tests.support.intake_driver import Caller


def test_tensors_of_any_layout_travel_as_they_are() -> None:
    texts = np.array([["ü€😀", ""], [b"\0\0", bytes(range(256))]], dtype=np.object_)
    numbers = np.array([[0.1, -np.nan], [np.inf, -0.0]], dtype=np.float16).T
    sent = Frame(frames.ANSWER, tensors={"texts": texts, "numbers": numbers})
    found = frames.read_frame(io.BytesIO(frames.encode(sent)))
    assert found is not None
    assert found.tensors["texts"].tolist() == [["ü€😀".encode(), b""], texts[1].tolist()]
    assert found.tensors["numbers"].tobytes() == numbers.tobytes()


def test_a_file_travels_at_its_own_size() -> None:
    file = np.array([bytes(range(256)) * 100], dtype=np.object_)
    assert len(frames.encode(Frame(frames.ANSWER, tensors={"x": file}))) < 25_700


_texts = st.text(max_size=8)
_elements = st.one_of(st.binary(max_size=9), _texts.map(str.encode))
_numbers = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3).flatmap(
    lambda shape: st.sampled_from([*DTYPES.values()]).flatmap(lambda t: arrays(t, shape))
)
_tensors = st.one_of(
    _numbers,
    st.lists(_elements, max_size=4).map(lambda list_: _objects(list_)),
)


def _objects(elements: list[bytes]) -> Any:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


@given(
    st.builds(
        Request,
        inputs=st.dictionaries(_texts, _tensors, max_size=4),
        parameters=st.dictionaries(_texts, _texts | st.integers() | st.booleans(), max_size=3),
        responder=_texts.map(Caller),
        outputs=st.lists(_texts, max_size=3),
        may_stream=st.booleans(),
        is_routed=st.booleans(),
    ),
    st.integers(0, 2**64 - 1),
)
def test_any_request_arrives_as_it_was_sent(request: Request, number: int) -> None:
    frame = frames.read_frame(io.BytesIO(encode_request(request, number)))
    assert frame is not None
    assert (frame.kind, frame.number) == (frames.REQUEST, number)
    found = read_request(frame, Caller)
    assert found.responder.request_id == request.responder.request_id
    own = replace(request, inputs={}, responder=found.responder)
    assert replace(found, inputs={}) == own
    assert list(found.inputs) == list(request.inputs)
    for name, array in request.inputs.items():
        got = found.inputs[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        if array.dtype == np.object_:
            assert got.tolist() == array.tolist()
        else:
            assert got.tobytes() == array.tobytes()


_INPUTS = {"text_input": _objects([b"a", b"bc"]), "x": np.zeros((2, 1), np.float32)}
_A_REQUEST = encode_request(Request(_INPUTS, {}, Caller("r"), ["y"]), 1)


@given(st.data())
def test_a_broken_frame_is_a_frame_or_an_error_of_the_link(data: st.DataObject) -> None:
    broken = bytearray(_A_REQUEST)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(LinkError):
        frames.read_frame(io.BytesIO(broken))


@given(st.integers(1, len(_A_REQUEST) - 1))
def test_a_frame_that_ends_early_is_an_error_of_the_link(size: int) -> None:
    with pytest.raises(LinkError, match="ended early"):
        frames.read_frame(io.BytesIO(_A_REQUEST[:size]))


def _raw(tensors: object, more: bytes = b"", texts: object = ()) -> bytes:
    data = msgpack.encode((frames.ANSWER, 0, 0, texts, tensors)) + more
    return frames.SIZE.pack(len(data)) + data


@pytest.mark.threat("link-socket")
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        frames.SIZE.pack(0),
        frames.SIZE.pack(2**32 - 1),
        frames.SIZE.pack(1) + b"{",
        frames.SIZE.pack(100_000) + b"\x91" * 100_000,
        _raw({}, b"more"),
        _raw({}, texts=[1]),
        _raw({}, texts=1),
        _raw([]),
        _raw({"x": []}),
        _raw({"x": ("<f4", [1])}),
        _raw({1: ("<f4", [1], b"abcd")}),
        _raw({"x": ("<f4", [1], [])}),
        _raw({"x": ("<f4", [1], [b"abcd", b"abcd"])}),
        _raw({"x": ("<f4", [2], b"abcd")}),
        _raw({"x": ("<f4", [1], b"abc")}),
        _raw({"x": ("<f4", [1] * 100, b"abcd")}),
        _raw({"x": ("<f4", "a", b"abcd")}),
        _raw({"x": ("O", [1], b"abcdefgh")}),
        _raw({"x": ("bytes", [1], b"a")}),
        _raw({"x": ("bytes", [2], [b"a"])}),
        _raw({"x": ("bytes", [2**40, 2**40], [b"a"])}),
        _raw({"x": ("bytes", [1], ["1"])}),
    ],
)
def test_a_broken_frame_is_an_error_of_the_link(data: bytes) -> None:
    with pytest.raises(LinkError):
        frames.read_frame(io.BytesIO(data))


def test_a_frame_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    with pytest.raises(FrameTooLargeError, match="110 bytes, allowed: at most 100"):
        frames.encode(Frame(frames.ANSWER, texts=["x" * 102]))
