"""A tritonserver of three small models, with the proxy of its ports in front."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hf_triton.ports.child_process import proxy as proxy_of
from hf_triton.ports.settings import Access
from hf_triton.tritonserver.child_process import ChildProcess
from hf_triton.tritonserver.listen import Listen, socket_folder
from hf_triton.tritonserver.process import TritonServer
from tests.support.triton import free_ports, load_models

METHODS = "/inference.GRPCInferenceService/"
_CONFIG = """\
name: "{name}"
backend: "python"
model_transaction_policy {{ decoupled: {decoupled} }}
input [{{ name: "input" data_type: {datatype} dims: [-1] }}]
output [{{ name: "output" data_type: {datatype} dims: [-1] }}]
instance_group [{{ kind: KIND_CPU }}]
"""
_MODEL = """\
import threading
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(request,)).start()

    def answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
        response = pb_utils.InferenceResponse([pb_utils.Tensor("output", array)])
        sender = request.get_response_sender()
        for _ in range({num_answers} - 1):
            sender.send(response)
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        sender.send(response, flags=final)
"""


@dataclasses.dataclass(frozen=True)
class Door:
    """The running server, its proxy, and a channel to the public port."""

    server: TritonServer
    proxy: ChildProcess
    channel: Any
    folder: Path

    @property
    def stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    @property
    def target(self) -> str:
        return self.server.listen.address(self.server.listen.grpc_port)

    def send(self, method: str, message: bytes, **options: Any) -> bytes:
        """Sends bytes as they are, to a method of Triton's service."""
        answer: bytes = self.channel.unary_unary(METHODS + method)(message, timeout=60, **options)
        return answer

    def check(self) -> None:
        """The server lives, and a neighbour is answered within seconds."""
        request = texts(b"hello")
        answer = self.stub.ModelInfer(request, timeout=10.0)
        assert answer.raw_output_contents[0].endswith(b"hello")
        assert self.server.exit_code() is None


def texts(*values: bytes, model: str = "text") -> Any:
    """A request of texts, as raw data."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="input", datatype="BYTES", shape=[len(values)])
    data = b"".join(struct.pack("<I", len(value)) + value for value in values)
    request.raw_input_contents.append(data)
    return request


def numbers(*values: int, shape: list[int] | None = None) -> Any:
    """A request of INT32, as raw data."""
    request = service_pb2.ModelInferRequest(model_name="number")
    request.inputs.add(name="input", datatype="INT32", shape=shape or [len(values)])
    request.raw_input_contents.append(struct.pack(f"<{len(values)}i", *values))
    return request


@contextlib.contextmanager
def door(folder: Path, access: Access | None = None) -> Iterator[Door]:
    """Starts both and stops both gracefully; the models are ``text``, ``number`` and ``stream``."""
    repository = folder / "repository"
    _write_model(repository, "text", "TYPE_STRING", 1)
    _write_model(repository, "number", "TYPE_INT32", 1)
    _write_model(repository, "stream", "TYPE_STRING", 3)
    with socket_folder() as sockets:
        listen = dataclasses.replace(free_ports(), sockets=sockets)
        log: list[str] = []
        server = TritonServer(repository, listen, verbose=True, write_log=log.append)
        with server:
            load_models(server, ["text", "number", "stream"])
            with _proxy(server, access or Access()) as proxy, _channel(listen) as channel:
                yield Door(server, proxy, channel, folder)
            assert server.exit_code() is None, server.exit_message("the server died")


def _write_model(repository: Path, name: str, datatype: str, num_answers: int) -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    values: Mapping[str, str] = {
        "name": name,
        "datatype": datatype,
        "decoupled": str(num_answers > 1).lower(),
    }
    (folder / "config.pbtxt").write_text(_CONFIG.format_map(values))
    (folder / "1" / "model.py").write_text(_MODEL.replace("{num_answers}", str(num_answers)))


@contextlib.contextmanager
def _proxy(server: TritonServer, access: Access) -> Iterator[ChildProcess]:
    proxy = proxy_of(server.listen, access, repository=server.repository)
    try:
        proxy.begin_start()
        proxy.wait_until_it_listens()
        yield proxy
    finally:
        proxy.kill()


def _channel(listen: Listen) -> Any:
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(listen.address(listen.grpc_port), options=options)
