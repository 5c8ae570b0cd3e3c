"""The HTTP port drops the request of a client that leaves: its model is told, and the connection
to tritonserver stays whole.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from hf_triton.ports.http import upstream
from tests.unit.ports.http_ports import GENERATE, INFER, Message, Port, answer, echo, open_port

STREAM = "/v2/models/m/generate_stream"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"
CALL = re.compile(r'"hf-triton-call": ?"([0-9a-f]{32})')


class Model:
    """Answers once its caller has left, as a model of ours does; a dead one never."""

    def __init__(self) -> None:
        self.port: Port
        self.is_dead = False
        self.left = asyncio.Event()

    async def __call__(self, request: Message, writer: asyncio.StreamWriter) -> None:
        found = CALL.search(request.body.decode())
        assert found
        if "generate_stream" in request.first:
            writer.write(HEAD)
        while not self.files(found[1]) or self.is_dead:
            await asyncio.sleep(0.01)
        self.left.set()
        writer.write(b"0\r\n\r\n" if "generate_stream" in request.first else answer())

    def files(self, name: str = "") -> list[Path]:
        """Those that say who has left."""
        return [path for path in self.port.folder.glob(f"left_{name}*") if path.suffix != ".told"]


async def ask_and_leave(port: Port, path: str) -> None:
    """Leaves once the request is with tritonserver, a stream once it has begun."""
    client = await port.client()
    body: dict[str, object] = {"inputs": []} if path == INFER else {"text_input": "x"}
    client.post(path, json.dumps(body).encode())
    num_asked = len(port.triton.asked)
    if path == STREAM:
        await client.reader.readuntil(b"data: 1")
    else:
        await port.until(lambda: len(port.triton.asked) > num_asked)
    client.writer.transport.abort()


@pytest.mark.parametrize("path", [GENERATE, INFER, STREAM])
async def test_a_model_of_ours_is_told_and_the_connection_goes_on(path: str) -> None:
    model = Model()
    async with open_port(script=model) as port:
        model.port = port
        port.supervisor.say_ours()
        await ask_and_leave(port, path)
        await asyncio.wait_for(model.left.wait(), 10)
        await port.until(lambda: not model.files())
        port.triton.script = echo
        assert (await port.post(GENERATE, b'{"text_input": "y"}')).status == 200
        assert port.triton.num_connections == 1


async def test_what_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LEFT_S", 0.1)
    model = Model()
    model.is_dead = True
    async with open_port(script=model) as port:
        model.port = port
        port.supervisor.say_ours()
        await ask_and_leave(port, GENERATE)
        await port.until(lambda: port.triton.num_open == 0)
        assert not model.files()
