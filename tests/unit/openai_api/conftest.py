"""A fake Triton and the translator in front of it, in one event loop of a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import grpc
import pytest
import uvloop
from msgspec import structs
from tritonclient.grpc import service_pb2_grpc

from hf_triton.ports.child_process import proxy
from hf_triton.ports.retries import Model as Told
from hf_triton.ports.retries import RetryCoordinator, line_of
from hf_triton.ports.serving import serve_ports
from hf_triton.ports.settings import EVERYBODY, Access, Caller, OpenAiPort, ProxySettings
from hf_triton.tritonserver.listen import Listen
from tests.support.triton import ADMIN_KEY, Triton, free_ports
from tests.unit.openai_api.fake_triton import FakeTriton, Model

Result = TypeVar("Result")
STRANGE_INPUTS = (
    *(("words", "TYPE_STRING", -1), ("times", "TYPE_INT32", 1)),
    *(("scale", "TYPE_FP32", 1), ("loud", "TYPE_BOOL", 1)),
)
MODELS = (
    Model("echo", "front"),
    Model("echo_stream", "engine"),
    Model("whole", "whole"),
    Model("batched", "front", max_batch_size=8),
    Model("batched_stream", "engine", max_batch_size=8),
    Model("labels", "whole", task="text-classification"),
    Model("pairs", "whole", task="text-classification"),
    Model("pair_rows", "whole", max_batch_size=4, task="text-classification"),
    Model("stranger", None, inputs=STRANGE_INPUTS),
    Model("zero_shot", "whole", task="zero-shot-classification"),
    Model("hears", "front", task="automatic-speech-recognition"),
    Model("hears_stream", "engine", task="automatic-speech-recognition"),
    Model("hears_rows", "whole", max_batch_size=4, task="automatic-speech-recognition"),
    Model("translator", "whole", task="text2text-generation"),
    Model("vectors", "whole", task="feature-extraction"),
    Model("rows", "whole", max_batch_size=4, task="feature-extraction"),
)


@dataclass
class Reply:
    """An HTTP answer: its body as JSON, or the events of a stream."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.body["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        assert self.headers["Content-Type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in self.text.split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


@dataclass
class Translator:
    """A running translator; ``triton`` is what it asks."""

    url: str
    triton: FakeTriton
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event
    retries: RetryCoordinator
    headers: dict[str, str] = field(default_factory=dict)

    def tell(self, **models: Told) -> None:
        """As the supervisor tells of Triton's models."""
        self.loop.call_soon_threadsafe(self.retries.follow, line_of(models))

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, path: str, **body: object) -> Reply:
        return self.send("POST", path, json.dumps(body).encode())

    def completion(self, **body: object) -> Reply:
        return self.post("/v1/completions", **{"model": "echo", "prompt": "a b c", **body})

    def chat(self, **body: object) -> Reply:
        messages = [{"role": "user", "content": "a b c"}]
        return self.post("/v1/chat/completions", **{"model": "echo", "messages": messages, **body})

    def send(self, method: str, path: str, data: bytes | None = None) -> Reply:
        request = urllib.request.Request(self.url + path, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Reply(response.status, dict(response.headers), response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read().decode())


@contextlib.contextmanager
def openai_port(triton: Triton, key: str | None) -> Iterator[str]:
    """The translator of ``serve`` in front of a real server; its address."""
    listen = replace(triton.server.listen, openai_port=free_ports().http_port)
    access = Access((Caller("openai", key),)) if key else EVERYBODY
    openai = OpenAiPort(listen.metrics_socket)
    process = proxy(listen, access, ADMIN_KEY, openai, triton.server.repository)
    process.begin_start()
    process.wait_until_it_listens()
    try:
        yield f"http://{listen.address(listen.openai_port)}"
    finally:
        process.begin_stop()
        process.end(time.monotonic() + 5)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


@dataclass
class Starter:
    """Starts translators and fakes, and ends them with the test."""

    loop: Loop
    endings: list[Coroutine[Any, Any, Any]] = field(default_factory=list)
    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)

    def triton(self, port: int = 0) -> tuple[FakeTriton, int]:
        return self.loop.run(self._triton(port))

    def api(self, *models: Model, port: int = 0, **options: Any) -> Translator:
        """A translator in front of a fake of its own, which has the usual models without others."""
        fake, port = self.triton(port)
        fake.models = {one.name: one for one in models} or fake.models
        return self.translator(fake, port, **options)

    def translator(
        self,
        triton: FakeTriton,
        triton_port: int,
        key: str | None = None,
        repository: Path = Path("nowhere"),
        media_hosts: tuple[str, ...] = (),
        access: Access = EVERYBODY,
        admin_key: str = "",
        **further: Any,
    ) -> Translator:
        port = free_ports().http_port
        if key:
            access = structs.replace(access, callers=(*access.callers, Caller("openai", key)))
        further = {"metrics_socket": f"{self.folder.name}/metrics_{port}", **further}
        openai = OpenAiPort(media_hosts=media_hosts, **further)
        listen = Listen(grpc_port=triton_port, openai_port=port)
        triton.abandoned_requests = left = f"{self.folder.name}/left_{port}_"
        settings = ProxySettings(listen, openai, left, access, admin_key, repository)
        return self.loop.run(self._translator(triton, settings, port))

    def end(self) -> None:
        while self.endings:
            self.loop.run(self.endings.pop())
        self.folder.cleanup()

    def end_last(self) -> None:
        self.loop.run(self.endings.pop())

    async def _triton(self, port: int) -> tuple[FakeTriton, int]:
        fake = FakeTriton({model.name: model for model in MODELS})
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        self.endings.append(server.stop(0))
        return fake, port

    async def _translator(
        self, triton: FakeTriton, settings: ProxySettings, port: int
    ) -> Translator:
        stop, ready = asyncio.Event(), asyncio.Event()
        retries = RetryCoordinator(settings.abandoned_requests, repository=settings.repository)
        serving = asyncio.create_task(serve_ports(settings, stop, ready.set, retries))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            serving.result()

        async def end() -> None:
            stop.set()
            await serving

        self.endings.append(end())
        loop = asyncio.get_running_loop()
        return Translator(f"http://127.0.0.1:{port}", triton, loop, stop, retries)


@pytest.fixture(scope="module")
def module_api(loop: Loop) -> Iterator[Translator]:
    """A translator for a module whose tests leave nothing behind: each start takes 50 ms."""
    starter = Starter(loop)
    yield starter.api()
    starter.end()


@pytest.fixture
def starter(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    # The fake is as busy as the machine.
    monkeypatch.setattr("hf_triton.ports.openai.triton.client.QUESTION_TIMEOUT_S", 60.0)
    starter = Starter(loop)
    yield starter
    starter.end()


@pytest.fixture
def api(starter: Starter) -> Translator:
    """A translator without a key, in front of a fake of its own, which it tells who has left."""
    return starter.api()
