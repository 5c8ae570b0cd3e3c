"""OpenAI's port, from its start to its end: routes, the key, and what each asks Triton for.

A client that goes takes its handler with it (aiohttp's handler_cancellation), and the handler its
calls to Triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from generator.spec.task_sets import MEDIA_TASKS
from hf_triton.batches.routes import BatchRoutes
from hf_triton.ports.callers import of_one_caller
from hf_triton.ports.openai.about import MODEL, About, with_schema
from hf_triton.ports.openai.adapters import AdapterChanges
from hf_triton.ports.openai.connections import Connection, followed, read_body, read_form
from hf_triton.ports.openai.exchanges import (
    AccessCheck,
    Handler,
    caller_of,
    errors_in_the_apis_format,
    id_of,
    json_response,
    streamed,
    trace_context,
)
from hf_triton.ports.openai.openapi import FORM, Operation, Route
from hf_triton.ports.openai.playground.routes import PATHS, Playground
from hf_triton.ports.openai.responses.kept import Deleted, EarlierResponses, KeptResponses
from hf_triton.ports.openai.routes import choices, messages, speech, tgi
from hf_triton.ports.openai.routes.answers import Answer, Chunks, Endpoint, aside
from hf_triton.ports.openai.routes.encoders.endpoint import EncoderRequest
from hf_triton.ports.openai.routes.encoders.rankings import ENCODING, OF_ONE
from hf_triton.ports.openai.routes.responses import RESPONSES, Response
from hf_triton.ports.openai.routes.speech import HEARING, SpeechForm
from hf_triton.ports.openai.routes.tokens import TOKENS
from hf_triton.ports.openai.schema.body import read_object
from hf_triton.ports.openai.schema.errors import ApiError, bad_field, of_field
from hf_triton.ports.openai.schema.media import MediaHosts, tensors
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.triton.catalog import Catalog, Repository
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.openai.triton.tensors import ServedModel, infer_request
from hf_triton.ports.port import Listener, Port, Shared
from hf_triton.ports.settings import OpenAiPort
from hf_triton.runtime.request.request_parameters import CALLER
from hf_triton.runtime.request.tensors import kind_of
from hf_triton.tritonserver.listen import Listen

_ABORT_S = 1.0  # for handlers that have not ended in time
Asked = TypeVar("Asked")
Item = TypeVar("Item")
GENERATING = (
    *(choices.COMPLETIONS, choices.CHAT, RESPONSES, messages.MESSAGES, messages.COUNT_TOKENS),
    *(*TOKENS, *tgi.GENERATE),
)
# Enough that no source waits for the others, few enough that a slow reader holds them back.
_NUM_WAITING = 64
KEPT = (
    (Operation("A response that is kept", Response), "GET"),
    (Operation("Forget a response", Deleted), "DELETE"),
)


async def merged(
    sources: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[tuple[int, Item], None]:
    """Items of all sources, each with its source's number; an error of one ends all."""
    found: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(_NUM_WAITING)

    async def pass_on(number: int, source: AsyncGenerator[Item, None]) -> None:
        end = None
        try:
            async with aclosing(source):
                async for item in source:
                    await found.put((number, item))
        except Exception as error:  # noqa: BLE001, raised again below
            end = error
        await found.put(end)

    tasks = [asyncio.create_task(pass_on(*numbered)) for numbered in enumerate(sources)]
    num_running = len(tasks)
    try:
        while num_running:
            item = await found.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class OpenAiApp:
    def __init__(self, settings: OpenAiPort, port: Port, triton_address: str) -> None:
        self._bodies, retries = port.bodies, port.retries
        self._triton = triton = Triton(triton_address, retries)
        self._kept = KeptResponses(settings.keep_s)
        self._media_hosts = MediaHosts(settings.media_hosts)
        repository = Repository(port.repository)
        self._catalog = Catalog(triton, retries, repository)
        self._adapters = AdapterChanges(self._catalog, port)
        self.batches = BatchRoutes(settings, port)
        has_playground = settings.has_playground
        self._playground = Playground(triton, retries, repository) if has_playground else None
        self._access = AccessCheck(port, PATHS if has_playground else ())
        fitting = (
            (tgi.GENERATE_COMPAT.tasks, self._handling(tgi.GENERATE_COMPAT, self._generated)),
            *((one.tasks, self._handling(one, self._encoded)) for one in OF_ONE),
        )
        metrics = settings.metrics_socket, port.callers.metrics
        self._about = About(triton, self._catalog, retries, metrics, fitting)

    def application(self) -> web.Application:
        middlewares = [followed, errors_in_the_apis_format, self._access.check]
        app = web.Application(middlewares=middlewares)
        app.on_response_prepare.append(self._access.send_headers)
        app.on_cleanup.append(self._close)
        routes = with_schema(self._routes())
        named = [replace(one, path=MODEL + one.path) for one in routes if one.path != MODEL]
        # The longest first: a model's name may have slashes.
        for route in (*sorted(named, key=lambda one: len(one.path), reverse=True), *routes):
            add = getattr(app.router, f"add_{route.method.lower()}")
            add(route.path, route.handler)
        if self._playground:
            self._playground.add_to(app.router, self._asked)
        return app

    async def _close(self, _app: web.Application) -> None:
        await self._media_hosts.close()
        await self._triton.close()

    def _routes(self) -> list[Route]:
        answered: dict[Endpoint, Callable[..., Awaitable[Any]]] = {
            **dict.fromkeys(GENERATING, self._generated),
            **dict.fromkeys(ENCODING, self._encoded),
            **dict.fromkeys(HEARING, self._heard),
        }
        return [
            *self._about.routes(),
            *(Route("/v1/responses/{id}", self._keep, *how) for how in KEPT),
            *(
                Route(path, self._handling(one, answer), one.operation)
                for one, answer in answered.items()
                for path in one.paths
            ),
            *self._adapters.routes(self._asked),
            *self.batches.routes(self._asked),
            *self._about.last_routes(),
        ]

    async def _asked(
        self, request: web.Request, read: Callable[[dict[str, Any]], Asked], more_bytes: int = 0
    ) -> Asked:
        """Reads the request from the body; a model named in the path is the one asked.
        ``more_bytes`` is the size of what else ``read`` reads. Raises ApiError.
        """
        data = await read_body(request, self._bodies)
        path = request.match_info

        def read_named() -> Asked:
            body = read_object(data)
            if "model" in path:
                if not isinstance(body.get("model"), str | None):
                    raise bad_field("model", kind_of(body["model"]), "a text")
                body = {**body, "model": path["model"]}
            return read(body)

        return await aside(len(data) + more_bytes, read_named)

    def _handling(self, endpoint: Endpoint, answer: Callable[..., Awaitable[Any]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            read, more_bytes = endpoint.read, 0
            if endpoint.refers:
                earlier = self._earlier(request)
                read, more_bytes = partial(read, earlier=earlier), earlier.num_bytes
            if endpoint.operation.takes == FORM:
                asked = read(await read_form(request, self._bodies))
            else:
                asked = await self._asked(request, read, more_bytes)
            model = await self._catalog.find(asked.model or "", endpoint.tasks)
            answered = partial(answer, endpoint, request, asked)
            return await self._retry_if_changed(model, answered)

        return handle

    async def _retry_if_changed(
        self,
        model: ServedModel,
        answer: Callable[[ServedModel], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Sends the request again if Triton refuses it because the model has changed since."""
        try:
            return await answer(model)
        except ApiError as error:
            if error.status in (404, 503):
                self._catalog.forget()
            if error.status not in (400, 404, 503):
                raise
            changed = None
            with contextlib.suppress(ApiError):
                changed = await self._catalog.changed(model)
            if changed is None and error.status == 404:
                await self._catalog.find(model.name)  # raises, or says that it is being loaded
            if changed is None:
                raise
        return await answer(changed)

    async def _encoded(
        self, endpoint: Endpoint, request: web.Request, asked: EncoderRequest, model: ServedModel
    ) -> web.Response:
        answer_id = f"{endpoint.id_prefix}{uuid.uuid4().hex}"
        infer = partial(self._triton.infer, metadata=trace_context(request))
        parameters = {**asked.of_caller(), **caller_of(request)}
        responses = await asked.ask(infer, model, id_of(request, answer_id), parameters)

        def written() -> web.Response:
            return json_response(asked.write(asked.answers(responses, model, answer_id)))

        return await aside(sum(one.ByteSize() for one in responses), written)

    async def _heard(
        self, endpoint: Endpoint, request: web.Request, asked: SpeechForm, model: ServedModel
    ) -> web.Response:
        task = speech.PATHS[endpoint.paths[0]]
        request_id = id_of(request, f"{endpoint.id_prefix}{uuid.uuid4().hex}")
        inputs = {**asked.inputs(task), **caller_of(request)}
        sent = infer_request(model, request_id, inputs, speech.OUTPUTS)
        responses = self._triton.responses(model, sent, trace_context(request))
        try:
            async with aclosing(responses):
                # To the end: Triton 24.10 may never forget a stream that is cancelled before.
                [response] = [one async for one in responses]
        except ApiError as error:
            raise speech.NAMES.of(error) from None
        written = speech.write(asked, task, response)
        return web.Response(text=written) if isinstance(written, str) else json_response(written)

    async def _generated(
        self,
        endpoint: Endpoint,
        request: web.Request,
        asked: GenerationRequest,
        model: ServedModel,
    ) -> web.StreamResponse:
        asked = await self._with_media(model, asked) if asked.media else asked
        answer_id = f"{endpoint.id_prefix}{uuid.uuid4().hex}"
        answer = Answer(asked, answer_id, model.task, self._earlier(request))
        chunks = self._chunks(request, model, asked, id_of(request, answer_id))
        writer = endpoint.writer(answer)
        if asked.stream:
            return await streamed(request, writer, chunks)
        found = await writer.whole(chunks)
        return await aside(answer.num_bytes, lambda: json_response(found))

    def _earlier(self, request: web.Request) -> EarlierResponses:
        owner = caller_of(request).get(CALLER, "")
        return EarlierResponses(self._kept, owner, owner or of_one_caller(request.remote or ""))

    async def _keep(self, request: web.Request) -> web.Response:
        """Tells a kept response, or forgets it."""
        is_told = request.method == "GET"
        if is_told and request.query.get("stream", "false") != "false":
            raise bad_field("stream", "another value", "false: a stored response is sent whole")
        earlier = self._earlier(request)
        answer = earlier.response if is_told else earlier.delete
        return json_response(answer(request.match_info["id"]))

    async def _with_media(self, model: ServedModel, asked: GenerationRequest) -> GenerationRequest:
        """The request with the files of its messages as tensors. Those that tools answer a model of
        texts are left out: its caller could not go on. Raises ApiError, 400.
        """
        if model.task not in MEDIA_TASKS:
            for part in asked.media:
                if not part.of_tool:
                    raise of_field(part.field, f"'{model.name}' ({model.task}) reads only texts")
            return replace(asked, media=())
        media = await self._media_hosts.fetched(asked.media)
        inputs = tuple({**one, **tensors(media)} for one in asked.inputs)
        return replace(asked, inputs=inputs, media=media)

    async def _chunks(
        self, request: web.Request, model: ServedModel, asked: GenerationRequest, request_id: str
    ) -> Chunks:
        """The chunks of all prompts; errors name what the caller sent."""
        adapter = {"lora_name": model.adapter} if model.adapter else {}
        own, trace = {**adapter, **caller_of(request)}, trace_context(request)
        sources = [
            self._triton.generate(model, request_id, {**inputs, **own}, asked.outputs, trace)
            for inputs in asked.inputs
        ]
        try:
            if len(sources) == 1:
                async with aclosing(sources[0]) as chunks:
                    async for chunk in chunks:
                        yield 0, chunk
            else:
                async with aclosing(merged(sources)) as numbered:
                    async for one in numbered:
                        yield one
        except ApiError as error:
            raise asked.names.of(error) from None


@contextlib.asynccontextmanager
async def openai_listener(
    settings: OpenAiPort, listen: Listen, shared: Shared
) -> AsyncIterator[Listener]:
    port = Port(shared)
    app = OpenAiApp(settings, port, listen.triton_grpc)
    runner = web.AppRunner(app.application(), handler_cancellation=True, shutdown_timeout=_ABORT_S)
    await runner.setup()
    new = partial(Connection, runner.server, port)
    try:
        async with app.batches.running(new):
            yield Listener(port, new, listen.openai_port, "--openai-port")
    finally:
        await runner.cleanup()
