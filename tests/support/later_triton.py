"""A ``tritonserver`` that differs from 24.10 as those of 2026 do, and runs no model.

A question whether a model is ready takes note of its dead processes, and asks the model (echo has
an option for it); an empty list for /generate is a 400; a stream that is cancelled ends the server;
processes abort aloud as their model is unloaded.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from hf_triton.runtime.request.request_parameters import CALL
from hf_triton.runtime.request.request_parameters import VARIABLE as LEFT_CALLS_VARIABLE
from hf_triton.serving.supervision.stub_deaths import num_instances
from tests.support.fake_control import ControlHandler, FakeTriton, LoadError

ABORT = (
    "Fatal Python error: PyGILState_Release: thread state must be current when releasing\n"
    "Python runtime state: finalizing (tstate=0x0000000000b0a0c8)\n\n"
)


class LaterTriton(FakeTriton):
    """``prefix`` is that of its regions of shared memory."""

    prefix = ""

    def __init__(self, repository: Path) -> None:
        super().__init__(repository)
        self.stubs: dict[str, list[subprocess.Popen[bytes]]] = {}

    def _load_own(self, name: str) -> None:
        super()._load_own(name)
        if not self.stubs.get(name):
            self.stubs[name] = [self._stub(name) for _ in range(num_instances(self.configs[name]))]

    def _stub(self, name: str) -> subprocess.Popen[bytes]:
        region = Path(f"/dev/shm/{self.prefix}{uuid.uuid4()}")
        region.touch()
        command = ["triton_python_backend_stub", str(self.repository / name / "1" / "model.py")]
        tail = shutil.which("tail")
        return subprocess.Popen(
            [*command, str(region), "-f"], executable=tail, stdout=subprocess.DEVNULL
        )

    def unload(self, name: str) -> None:
        super().unload(name)
        for stub in self.stubs.pop(name, []):
            if stub.poll() is None:
                stub.kill()
                stub.wait()
                print(f"{ABORT}a process of {name} has ended", flush=True)

    def is_ready(self, name: str) -> bool:
        stubs = self.stubs.get(name, [])
        if not self.ready(name) or [stub.poll() for stub in stubs] != [None] * len(stubs):
            return False
        return all(self.says_ready(name, version) for version in self.ready(name))


class Handler(ControlHandler):
    protocol_version = "HTTP/1.1"
    triton: LaterTriton

    def address_string(self) -> str:
        return "unix"

    def _get(self) -> None:
        parts = self._parts()
        if parts == ["health", "live"]:
            self._answer(200, {})
        elif parts[-1:] == ["ready"]:
            names = parts[1:2] if parts[0] == "models" else list(self.triton.stubs)
            self._answer(200 if all(map(self.triton.is_ready, names)) else 400, {})
        else:
            super()._get()

    def _post(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._parts()[-1] != "generate":
            super()._post()
        elif [] in json.loads(body).values():
            self._answer(400, {"error": "unexpected shape for input"})
        else:
            self._answer(200, json.loads(body))


class Server(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


class Calls(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, triton: LaterTriton) -> None:
        self._triton = triton

    async def ServerLive(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerLiveResponse(live=True)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            self._triton.load(request.model_name)
        except LoadError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return service_pb2.RepositoryModelLoadResponse()

    async def ModelConfig(self, request: Any, _context: Any) -> Any:  # noqa: N802
        text = (self._triton.repository / request.name / "config.pbtxt").read_text()
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        return service_pb2.ModelConfigResponse(config=config)

    async def ModelStreamInfer(self, requests: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        try:
            async for request in requests:
                yield service_pb2.ModelStreamInferResponse()
                call = request.parameters[CALL].string_param
                left = Path(f"{os.environ[LEFT_CALLS_VARIABLE]}{call}")
                while call and not left.exists():
                    await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            os.abort()


async def main(flags: dict[str, str]) -> None:
    triton = LaterTriton(Path(flags["--model-repository"]))
    triton.prefix = flags["--backend-config"].partition("shm-region-prefix-name=")[2]
    handler = type("Handler", (Handler,), {"triton": triton, "lock": threading.Lock()})
    http: Any = Server(flags["--http-address"].removeprefix("unix:"), handler)  # type: ignore[arg-type]
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Calls(triton), server)
    server.add_insecure_port(f"{flags['--grpc-address']}:{flags['--grpc-port']}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(dict(flag.split("=", 1) for flag in sys.argv[1:] if "=" in flag)))
