"""Hostile gRPC: what a client may send, and the server and its neighbours after it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from hf_triton.ports.refusal import GRPC_ADMIN_HEADER
from tests.support.grpc_door import METHODS, Door, numbers, texts

MIB = 1 << 20
INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def refusal(call: Callable[..., object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


def classified(request: Any, name: str = "output") -> Any:
    request.outputs.add(name=name).parameters["classification"].int64_param = 2
    return request


def test_what_is_not_hostile_is_answered_as_by_triton(checked: Door) -> None:
    answer = checked.stub.ModelInfer(texts(b"a", b"b\0c"))
    assert answer.raw_output_contents[0] == b"\1\0\0\0a\3\0\0\0b\0c"
    answer = checked.stub.ModelInfer(classified(numbers(1, 7, 5)))
    assert answer.raw_output_contents[0] == b"\3\0\0\x007:1\3\0\0\x005:2"
    gzip, message = grpc.Compression.Gzip, texts(b"a" * 100_000).SerializeToString()
    assert len(checked.send("ModelInfer", message, compression=gzip)) > 100_000
    code, details = refusal(lambda: checked.stub.ModelInfer(texts(b"a", model="none")))
    assert code == grpc.StatusCode.NOT_FOUND
    assert "unknown model" in details


def changed(**changes: Any) -> Any:
    request = texts(b"a")
    request.MergeFrom(service_pb2.ModelInferRequest(**changes))
    return request


def salted(name: str, value: str) -> dict[str, Any]:
    return {name: service_pb2.InferParameter(string_param=value)}


ZERO = "got a name or a parameter with a zero byte in it"
TEXTS = "classification: got output 'output' of type BYTES; allowed: numbers"
SHAPES = [[2**62 + 4], [2**61], [2**32, 2**32], [-1], [-2, -2], [-(2**63)], [0, 2**62]]
REFUSED: dict[str, tuple[bytes, str]] = {
    "texts to classify": (classified(texts(b"a")).SerializeToString(), TEXTS),
    "an output with a zero byte": (classified(texts(b"a"), "output\0").SerializeToString(), ""),
    "an output that is none": (classified(texts(b"a"), "none").SerializeToString(), ""),
    # A parameter of Triton's ends at a zero byte; a tensor's text does not.
    "a salt": (changed(parameters=salted("cache_salt", "T\0A")).SerializeToString(), ZERO),
    "its name": (changed(parameters=salted("cache_salt\0", "T")).SerializeToString(), ZERO),
    "a caller": (changed(parameters=salted("hf-triton-caller", "x")).SerializeToString(), "param"),
    "an id": (changed(id="a\0b").SerializeToString(), ZERO),
    **{
        f"the shape {shape}": (
            numbers(1, 2, 3, 4, shape=shape).SerializeToString(),
            f"inputs[0].shape: got {shape}, not a tensor's shape",
        )
        for shape in SHAPES
    },
    **{
        f"millions of {tag.hex()}": (
            texts(b"a").SerializeToString() + tag * 5_000_000,
            "the message: got more than 1024 fields",
        )
        for tag in (b"\x22\x00", b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x7a\x00")
    },
}


@pytest.mark.threat("grpc-ends-triton", "alike-salts")
@pytest.mark.parametrize("message, told", REFUSED.values(), ids=REFUSED)
def test_what_would_end_triton_or_mislead_it_is_refused(
    checked: Door, message: bytes, told: str
) -> None:
    before = memory(checked)
    code, details = refusal(lambda: checked.send("ModelInfer", message))
    assert (code, details[: len(told)]) == (INVALID, told)
    assert memory(checked) - before < 50 * MIB
    assert checked.stub.ModelInfer(numbers(1, 2)).outputs[0].shape == [2], "its process lives"


@pytest.mark.threat("doubled-headers")
@pytest.mark.parametrize("name", ["authorization", GRPC_ADMIN_HEADER])
def test_a_header_that_counts_comes_once(checked: Door, name: str) -> None:
    both = [(name, "a"), (name, "a")]
    code, details = refusal(lambda: checked.stub.ModelInfer(texts(b"a"), metadata=both))
    assert (code, details) == (INVALID, f"got the header {name} twice")


def test_a_request_that_is_refused_ends_its_stream_and_no_other(checked: Door) -> None:
    held = threading.Event()

    def requests() -> Iterator[Any]:
        yield texts(b"a", model="stream")
        held.wait(20)

    neighbour = checked.stub.ModelStreamInfer(requests())
    bad = classified(texts(b"a", model="stream"))
    answers = checked.stub.ModelStreamInfer(iter([texts(b"b", model="stream"), bad]))
    code, details = refusal(lambda: list(answers))
    assert code == INVALID
    assert details == "classification: got output 'output' of type BYTES; allowed: numbers"
    held.set()
    assert len(list(neighbour)) == 3


def memory(server: Door) -> int:
    """Tritonserver's, in bytes."""
    group = psutil.Process(server.server.pid).children(recursive=True)
    return sum(each.memory_info().rss for each in group if each.name() == "tritonserver")


@pytest.mark.threat("grpc-ends-triton")
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_requests_of_more_than_64_mib_are_refused_and_leave_nothing(
    checked: Door, compression: grpc.Compression
) -> None:
    before, shared = memory(checked), shared_memory(checked)
    message = texts(bytes(400 * MIB)).SerializeToString()
    code, _ = refusal(lambda: checked.send("ModelInfer", message, compression=compression))
    assert code == EXHAUSTED
    assert memory(checked) - before < 50 * MIB
    assert shared_memory(checked) == shared


def shared_memory(server: Door) -> int:
    port = server.server.listen.http_port
    regions = Path("/dev/shm").glob(f"hf_triton_*_{port}_*")
    return sum(region.stat().st_size for region in regions)


@pytest.mark.threat("grpc-ends-triton")
@pytest.mark.parametrize("method", ["ModelMetadata", "LogSettings"])
def test_other_methods_take_small_requests_only(checked: Door, method: str) -> None:
    code, details = refusal(lambda: checked.send(method, b"\x0a\x80\x80\x04" + b"x" * 65_536))
    assert (code, details) == (INVALID, "got 65540 bytes, allowed: 65536")
    for garbage in (b"\xff" * 50, b"\x0a\x7f", b"\x7b" * 60_000):
        with contextlib.suppress(grpc.RpcError):
            checked.send(method, garbage)


@pytest.mark.threat("grpc-ends-triton")
def test_the_headers_that_end_a_server_are_not_passed_on(checked: Door) -> None:
    metadata = (("triton_grpc_error", "true"),)
    (answer,) = checked.stub.ModelStreamInfer(iter([texts(b"a", model="none")]), metadata=metadata)
    assert "unknown model" in answer.error_message, "in the stream, not its status"


@pytest.mark.threat("left-grpc-calls")
def test_calls_that_end_as_they_are_left_end_no_server(checked: Door) -> None:
    """Directly, Triton 24.10 and 26.08 die within seconds of these."""

    def requests(num: int, left: threading.Event | None) -> Iterator[bytes]:
        yield from [texts(b"a", model="stream").SerializeToString()] * num
        if left:  # until then more could come
            left.wait(20)

    def leave(seed: int) -> None:
        draw = random.Random(seed)
        with grpc.insecure_channel(checked.target) as channel:
            infer = channel.unary_unary(f"{METHODS}ModelInfer")
            stream = channel.stream_stream(f"{METHODS}ModelStreamInfer")
            text = texts(b"a").SerializeToString()
            while time.monotonic() < end:
                with contextlib.suppress(grpc.RpcError):
                    infer(text, timeout=draw.uniform(0.001, 0.005))
                left = threading.Event()
                call = stream(requests(draw.randint(1, 5), draw.choice([left, None])))
                with contextlib.suppress(grpc.RpcError, StopIteration):
                    for _ in range(draw.randint(0, 3)):
                        next(call)
                time.sleep(draw.uniform(0, 0.002))
                call.cancel()
                left.set()

    end = time.monotonic() + 3
    threads = [threading.Thread(target=leave, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.5)
    assert checked.server.exit_code() is None, checked.server.exit_message("the server died")


FIELDS = st.binary(max_size=40)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.threat("grpc-ends-triton")
@given(
    shape=st.lists(NUMBERS | st.integers(0, 8), max_size=4),
    data=st.lists(FIELDS, max_size=3),
    datatype=st.sampled_from(["INT32", "BYTES", "FP32", "", "x"]),
    output=st.sampled_from(["output", "", "output\0", "none"]),
    names=st.lists(st.text(max_size=8), max_size=3),
    value=NUMBERS,
    tail=FIELDS,
    model=st.sampled_from(["text", "number", "stream", "", "none"]),
)
@settings(max_examples=60)
def test_whatever_is_sent_the_server_answers(
    server: Door,
    shape: list[int],
    data: list[bytes],
    datatype: str,
    output: str,
    names: list[str],
    value: int,
    tail: bytes,
    model: str,
) -> None:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="input", datatype=datatype, shape=shape)
    request.raw_input_contents.extend(data)
    for name in [*names, "classification"]:
        request.outputs.add(name=output).parameters[name].int64_param = value
        request.parameters[name].int64_param = value
    for message in (request.SerializeToString(), request.SerializeToString() + tail):
        with contextlib.suppress(grpc.RpcError):
            server.channel.unary_unary(f"{METHODS}ModelInfer")(message, timeout=10)
    server.check()
