"""``hf-triton serve`` on what tritonservers of 2026 do otherwise than 24.10."""

from __future__ import annotations

import os
import queue
import signal
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hf_triton.runtime.request.request_parameters import CALL
from tests.support.served import Served, serve
from tests.support.triton import ROOT, eventually, get, post

MODELS = """\
- {name: double, instance_group: [{count: 2, kind: KIND_CPU}]}
- {name: other, streaming: true}
- {name: shy, options: {is_ready: false}}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("later")
    program = folder / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.support.later_triton $*\n"
    )
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    with serve(folder, MODELS, environment=path) as served:
        served.wait_for("Ctrl-C stops")
        yield served


def url(served: Served, path: str) -> str:
    return f"http://127.0.0.1:{served.listen.http_port}/v2/{path}"


def test_a_model_that_says_that_it_is_not_ready_concerns_itself_alone(served: Served) -> None:
    assert get(url(served, "models/other/ready")).status == 200
    assert get(url(served, "models/shy/ready")).status == 400
    assert "shy is loaded, but says that it is not ready, after" in served.err
    assert "shy': " not in served.err, "it has not failed, and is not loaded again"


def test_a_death_that_the_server_takes_note_of_is_told_and_aborts_at_unload_are_not(
    served: Served,
) -> None:
    os.kill(served.stub_pid("double"), signal.SIGKILL)
    assert eventually(lambda: get(url(served, "models/double/ready")).status == 400)
    assert get(url(served, "models/other/ready")).status == 200
    # Whoever asks whether it is ready has the server reap it, and its reason may go with that.
    served.wait_for("model 'double': its Python process died")
    served.wait_for("double is ready again after")
    served.wait_for("a process of double has ended")
    assert "Python runtime state" not in served.err
    assert "Fatal Python error" not in served.err


def test_empty_lists_are_answered(served: Served) -> None:
    body = {"text_input": "a", "stop_words": []}
    passed_on = post(url(served, "models/double/generate"), body).body
    assert passed_on.pop(CALL), "by which the model knows the request"
    assert passed_on == {"text_input": "a"}


@pytest.mark.threat("left-grpc-calls")
def test_streams_that_are_left_with_their_sending_open_end_no_server(served: Served) -> None:
    before = served.tritonserver_pid()
    with grpc.insecure_channel(f"127.0.0.1:{served.listen.grpc_port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(200):
            sending = queue.SimpleQueue[Any]()
            sending.put(service_pb2.ModelInferRequest(model_name="other_stream"))
            call = stub.ModelStreamInfer(iter(sending.get, None))
            next(call)
            call.cancel()
            sending.put(None)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
    assert served.tritonserver_pid() == before
    assert served.process.poll() is None
