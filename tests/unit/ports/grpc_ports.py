"""The public gRPC port in front of a fake tritonserver, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hf_triton.ports.refusal import GRPC_ADMIN_HEADER
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.serving import serve_ports
from hf_triton.ports.settings import EVERYBODY, Access, ProxySettings
from hf_triton.runtime.request.request_parameters import CALL, EMPTY_FINAL
from tests.support.triton import free_ports
from tests.unit.ports.http_ports import Supervisor


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.supervisor: Supervisor
        self.address, self.stop = "", asyncio.Event()  # of the port in front
        self.relay: Relay
        self.keys: list[Any] = []
        self.told: list[bool] = []
        self.abandoned_requests = ""
        self.named: list[bool] = []
        self.num_waiting = self.num_left = self.num_cancelled = 0
        self.errors: list[str] = []  # of the requests that come next
        self.num_dead = 0  # of those the ones that are not answered before the test is over
        self.is_over = asyncio.Event()
        self.prompts: list[str] = []
        self.num_tokens = self.num_deaths = 0  # of a stream
        self.piece = b""  # that each token has
        self.calls: list[str] = []

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.keys.append(dict(context.invocation_metadata()).get(GRPC_ADMIN_HEADER))
        return service_pb2.RepositoryIndexResponse()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            self.told.append(EMPTY_FINAL in request.parameters)
            if self.num_tokens:
                async for token in self._tokens(request):
                    yield token
                continue
            if error := await self._error(request):
                yield service_pb2.ModelStreamInferResponse(error_message=error)
                return
            if "slow" in request.parameters:
                await asyncio.sleep(0.2)
            answer = service_pb2.ModelInferResponse(id=request.id)
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)
            await self._wait(request)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        if error := await self._error(request):
            await context.abort(grpc.StatusCode.INTERNAL, error)
        await self._wait(request)
        return service_pb2.ModelInferResponse(id=request.id)

    async def _tokens(self, request: Any) -> AsyncIterator[Any]:
        """Those that the caller has not; behind two the model dies, ``num_deaths`` times, which
        keeps a journal.
        """
        self.calls.append(request.parameters[CALL].string_param)
        _, num_told, _, journal = f"{self.calls[-1]}-0-0-none".split("-")[:4]
        if (file := Path(f"{self.abandoned_requests}{journal}.told")).exists():
            file.write_bytes(b"{}\n")
        for number in range(int(num_told), self.num_tokens):
            if self.num_deaths and number == int(num_told) + 2:
                self.num_deaths -= 1
                self.supervisor.kill()
                await self.is_over.wait()
            is_last = number + 1 == self.num_tokens
            if is_last:
                await self._wait(request)
            pieces = [self.piece]
            answer = service_pb2.ModelInferResponse(id=str(number), raw_output_contents=pieces)
            if is_last and "triton_enable_empty_final_response" in request.parameters:
                answer.parameters["triton_final_response"].bool_param = True
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)

    async def _error(self, request: Any) -> str:
        """A request's error, "" for none."""
        self.prompts.append(request.id)
        if self.num_dead:
            self.num_dead -= 1
            await self.is_over.wait()
        return self.errors.pop(0) if self.errors else ""

    async def _wait(self, request: Any) -> None:
        """Until its caller has left, where it asks for that."""
        self.named.append(CALL in request.parameters)
        if "waits" not in request.parameters:
            return
        self.num_waiting += 1
        try:
            name = request.parameters[CALL].string_param.partition("-")[0]
            file = Path(f"{self.abandoned_requests}{name}")
            while not (file.is_file() or self.is_over.is_set()):
                await asyncio.sleep(0.01)
            self.num_left += 1
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_waiting -= 1


class Relay:
    """Passes bytes on to the fake's socket, until it ends as a killed process does."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._serving.add(asyncio.current_task())
        behind, out = await asyncio.open_unix_connection(self._path)
        self._writers += (writer, out)
        await asyncio.gather(_pass_on(reader, out), _pass_on(behind, writer))

    def cut(self) -> None:
        """Closes all connections at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        """Returns once all connections are closed."""
        self.cut()
        tasks = [task for task in self._serving if task]
        if tasks:
            await asyncio.wait(tasks, timeout=5)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def grpc_port(
    folder: Path, admin_key: str = "", access: Access = EVERYBODY
) -> AsyncIterator[tuple[Triton, Any]]:
    """A fake behind the proxy, and the stub of a client."""
    listen, triton = dataclasses.replace(free_ports(), sockets=str(folder)), Triton()
    server, triton.abandoned_requests = grpc.aio.server(), f"{folder}/left_"
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    server.add_insecure_port(f"unix:{folder}/fake")
    await server.start()
    triton.relay = Relay(f"{folder}/fake")
    relaying = await asyncio.start_unix_server(triton.relay.serve, listen.grpc_socket)
    settings = ProxySettings(listen, None, triton.abandoned_requests, access, admin_key, folder)
    ready, triton.address = asyncio.Event(), f"127.0.0.1:{listen.grpc_port}"
    retries = RetryCoordinator(triton.abandoned_requests, repository=folder)
    triton.supervisor = Supervisor(retries)
    serving = asyncio.create_task(serve_ports(settings, triton.stop, ready.set, retries))
    await ready.wait()
    try:
        async with grpc.aio.insecure_channel(triton.address) as channel:
            yield triton, service_pb2_grpc.GRPCInferenceServiceStub(channel)
    finally:
        triton.is_over.set()
        triton.stop.set()
        await serving
        await server.stop(0)
        relaying.close()
        await triton.relay.close()
