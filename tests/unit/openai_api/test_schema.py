"""The served OpenAPI schema, and the metrics of Triton's port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from hf_triton.ports.openai.app import OpenAiApp
from hf_triton.ports.port import Port, Shared
from hf_triton.ports.settings import OpenAiPort
from tests.unit.openai_api.conftest import Starter, Translator


@pytest.mark.threat("openai-schema")
def test_every_route_has_a_schema(api: Translator) -> None:
    async def application() -> web.Application:
        settings = OpenAiPort(has_playground=False)
        app = OpenAiApp(settings, Port(Shared()), api.url).application()
        runner = web.AppRunner(app)
        await runner.setup()
        await runner.cleanup()
        return app

    app = asyncio.run(application())
    routed = {
        (route.resource.canonical, route.method.lower())
        for route in app.router.routes()
        if route.resource and route.method != "HEAD"
    }
    routed -= {one for one in routed if one[0].startswith("/models/{model}/")}
    paths = api.get("/openapi.json").body["paths"]
    assert routed == {(path, method) for path, methods in paths.items() for method in methods}


METRICS = '# TYPE nv_inference_count counter\nnv_inference_count{model="demo"} 3\n'


def test_metrics_are_those_of_tritons_port(starter: Starter, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(METRICS)}\r\n\r\n"
        writer.write((head + METRICS).encode())
        writer.close()

    path = str(tmp_path / "metrics")
    api = starter.api(metrics_socket=path)
    assert api.get("/metrics").status == 503, "nobody listens there"
    server = starter.loop.run(asyncio.start_unix_server(answer, path))
    reply = api.get("/metrics")
    starter.loop.loop.call_soon_threadsafe(server.close)
    assert (reply.status, reply.text) == (200, METRICS)
    assert reply.headers["Content-Type"].startswith("text/plain")
