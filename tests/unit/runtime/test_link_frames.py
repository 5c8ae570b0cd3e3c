"""The frames of the engine link: any request arrives as it was sent, and nothing else is taken for
one.
"""

from __future__ import annotations

import contextlib
import io
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hf_triton.runtime.link import frames, protocol
from hf_triton.runtime.link.frames import Frame, FrameTooLargeError
from hf_triton.runtime.link.link_request import LinkRequest, read_request
from hf_triton.runtime.link.protocol import LinkError


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, False]),
        *(
            np.array([np.iinfo(t).min, np.iinfo(t).max], dtype=t)
            for t in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        ),
        np.array([0.1, -65504, 6e-8, np.inf, -np.inf, np.nan, -0.0], dtype=np.float16),
        np.array([0.1, 3.4e38, 1e-45, np.inf, -np.inf, np.nan, -0.0], dtype=np.float32),
        np.array([0.1, 1.7e308, 5e-324, np.inf, -np.inf, np.nan, -0.0], dtype=np.float64),
        np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int32).T,
        np.array([], dtype=np.float32),
        np.empty((2, 0), dtype=np.int64),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_tensors_travel_bit_for_bit(array: Any) -> None:
    got = _round_trip(array)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


def test_bytes_of_any_value_travel_unchanged() -> None:
    array = np.array([[bytes(range(256)), b""], ["ü€😀".encode(), b"\0\0"]], dtype=np.object_)
    assert _round_trip(array).tolist() == array.tolist()
    texts = np.array(["ü€😀"], dtype=np.object_)
    assert _round_trip(texts).tolist() == ["ü€😀".encode()]
    assert _round_trip(np.array([], dtype=np.object_)).shape == (0,)


def test_a_file_travels_at_its_own_size() -> None:
    file = np.array([bytes(range(256)) * 100], dtype=np.object_)
    assert len(frames.encode(Frame(frames.ANSWER, tensors={"x": file}))) < 25_700


def _round_trip(array: Any) -> Any:
    return _sent(Frame(frames.ANSWER, tensors={"x": array})).tensors["x"]


def _sent(frame: Frame) -> Frame:
    """What the other end reads of a frame."""
    found = frames.read_frame(io.BytesIO(frames.encode(frame)))
    assert found is not None
    return found


_texts = st.text(max_size=8)
_elements = st.one_of(st.binary(max_size=9), _texts.map(str.encode))
_numbers = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3).flatmap(
    lambda shape: st.sampled_from(frames._DTYPES).flatmap(lambda t: arrays(t, shape))
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
        LinkRequest,
        inputs=st.dictionaries(_texts, _tensors, max_size=4),
        parameters=_texts,
        outputs=st.lists(_texts, max_size=3),
        request_id=_texts,
        may_stream=st.booleans(),
        is_routed=st.booleans(),
    ),
    st.integers(0, 2**64 - 1),
)
def test_any_request_arrives_as_it_was_sent(request: LinkRequest, number: int) -> None:
    frame = frames.read_frame(io.BytesIO(request.encode(number)))
    assert frame is not None
    assert (frame.kind, frame.number) == (frames.REQUEST, number)
    found = read_request(frame)
    assert replace(found, inputs={}) == replace(request, inputs={})
    assert list(found.inputs) == list(request.inputs)
    for name, array in request.inputs.items():
        got = found.inputs[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        if array.dtype == np.object_:
            assert got.tolist() == array.tolist()
        else:
            assert got.tobytes() == array.tobytes()


_A_REQUEST = LinkRequest(
    {"text_input": _objects([b"a", b"bc"]), "x": np.zeros((2, 1), np.float32)}, "{}", ["y"], "r"
).encode(1)


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


def _raw(fields: list[bytes], num_tensors: int = 0, missing: int = 0) -> bytes:
    """A frame of these fields, or of more than there are."""
    lengths = struct.pack(f"={len(fields)}I", *map(len, fields))
    body = b"".join([lengths, *fields])
    head = frames._HEAD.pack(len(body), len(fields) + missing, num_tensors, frames.ANSWER, 0, 0)
    return head + body


_OF_FLOATS, _OF_BYTES = frames._CODES[np.dtype("float32")], frames._BYTES


@pytest.mark.threat("link-socket")
@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        frames._HEAD.pack(0, 1, 0, 2, 0, 0),
        frames._HEAD.pack(2**32 - 1, 2**32 - 1, 0, 2, 0, 0),
        _raw([b"text"], missing=1),
        _raw([b"\xff"]),
        _raw([b"x"], num_tensors=1),
        _raw([b"x", b""], num_tensors=1),
        _raw([b"x", struct.pack("=BQ", 99, 1), b""], num_tensors=1),
        _raw([b"x", struct.pack("=BQ", _OF_FLOATS, 1)], num_tensors=1),
        _raw([b"x", struct.pack("=BQ", _OF_FLOATS, 2), b"abcd"], num_tensors=1),
        _raw([b"x", struct.pack("=BQ", _OF_FLOATS, 1), b"abc"], num_tensors=1),
        _raw([b"x", struct.pack("=BQQ", _OF_FLOATS, 2**64 - 1, 0), b""], num_tensors=1),
        _raw([b"x", struct.pack("=B40Q", _OF_FLOATS, *[1] * 40), b"abcd"], num_tensors=1),
        _raw([b"x", struct.pack("=BQ", _OF_BYTES, 2), b"a"], num_tensors=1),
        _raw([b"x", struct.pack("=BQQ", _OF_BYTES, 2**40, 2**40), b"a"], num_tensors=1),
    ],
    ids=[
        *("torn head", "no lengths", "too large", "too few lengths", "no text", "no type"),
        *("empty type", "unknown type", "no data", "too few numbers", "torn number"),
        *("a size that no array has", "too many dimensions", "too few texts", "far too few"),
    ],
)
def test_a_broken_frame_is_an_error_of_the_link(data: bytes) -> None:
    with pytest.raises(LinkError):
        frames.read_frame(io.BytesIO(data))


@pytest.mark.parametrize(
    "said, error",
    [
        (b"\0\0", "not a hello"),
        (struct.pack("!II", 2, 2) + b"{}", "not a hello"),
        (struct.pack("!II", 2, 2) + b"[]", "not a hello"),
        (struct.pack("!II", 100_000, 100_000) + b"[" * 100_000, "not a hello"),
        (frames.encode(Frame(frames.DRAIN)), "not a hello"),
        (protocol.hello().replace(b"4", b"3"), "version 3 of the link, here: 4"),
    ],
)
def test_what_is_no_hello_of_our_version_is_an_error_of_the_link(said: bytes, error: str) -> None:
    with pytest.raises(LinkError, match=error):
        protocol.read_hello(io.BytesIO(said))


def test_a_frame_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    with pytest.raises(FrameTooLargeError, match="106 bytes, allowed: at most 100"):
        frames.encode(Frame(frames.ANSWER, texts=["x" * 102]))
