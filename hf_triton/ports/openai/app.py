"""The HTTP side: routes, the key, and what each asks Triton for.

A client that goes takes its handler with it (aiohttp's handler_cancellation), and the handler its
calls to Triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Literal, TypeVar, cast

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from generator.spec.runtime_rules import CALLER
from generator.spec.task_sets import MEDIA_TASKS, SPEECH_TASKS
from hf_triton.ports.callers import of_one_caller
from hf_triton.ports.hosts import WRONG_HOST, is_host
from hf_triton.ports.openai.about import About, with_schema
from hf_triton.ports.openai.access import AccessCheck, caller_of
from hf_triton.ports.openai.adapters.changes import AdapterChanges
from hf_triton.ports.openai.bodies import check_encoding, read_body, read_form
from hf_triton.ports.openai.connections import followed
from hf_triton.ports.openai.media_hosts import MediaHosts
from hf_triton.ports.openai.one_model import NAMED, OneModel, routes_of
from hf_triton.ports.openai.openapi_schema.document import Operation, Route
from hf_triton.ports.openai.playground.routes import Playground
from hf_triton.ports.openai.responses.kept import NONE_KEPT, EarlierResponses, KeptResponses
from hf_triton.ports.openai.routes import chat, completions, messages, speech, tgi
from hf_triton.ports.openai.routes.answers import Answer, Chunks, aside
from hf_triton.ports.openai.routes.encoders import ENCODING, OF_ONE
from hf_triton.ports.openai.routes.encoders.endpoint import EncoderEndpoint, ask_all
from hf_triton.ports.openai.routes.endpoint import Endpoint
from hf_triton.ports.openai.routes.merging import merged, single
from hf_triton.ports.openai.routes.responses import KEPT, RESPONSES, KeptPath
from hf_triton.ports.openai.routes.tokens import TOKENS
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.json_body import kind_of, read_object
from hf_triton.ports.openai.schema.media import tensors, with_places
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.sending import (
    Handler,
    errors_in_the_apis_format,
    json_response,
    streamed,
)
from hf_triton.ports.openai.triton.catalog import KINDS, Catalog, ServedModel
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.openai.triton.context_lengths import ContextLengths
from hf_triton.ports.openai.triton.request_headers import Metadata, id_of, send_id, trace_context
from hf_triton.ports.port import Port
from hf_triton.ports.triton_calls import LEFT

Asked = TypeVar("Asked")

_GENERATING = (
    *(completions.COMPLETIONS, chat.CHAT, messages.MESSAGES, messages.COUNT_TOKENS),
    *(*RESPONSES, *TOKENS, *tgi.GENERATE),
)


class Model(Struct, kw_only=True):
    """One model; ``parent`` is that of an adapter, ``root`` the own name of one that has others;
    ``max_model_len`` and ``max_input_tokens`` are the tokens of its context, vLLM's and Anthropic's
    name of them; ``state`` is that of one that is loaded on demand; ``type`` is Together's, or
    Anthropic's where its clients ask.
    """

    id: str
    object: Literal["model"] = "model"
    display_name: str
    created: int
    created_at: str
    owned_by: str = "hf-triton"
    root: str
    task: str
    type: str
    parent: str | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    max_input_tokens: int | UnsetType = UNSET
    state: Literal["asleep", "loading", "loaded", "leaving"] | UnsetType = UNSET


class Models(Struct, kw_only=True):
    """Those that are ready."""

    object: Literal["list"] = "list"
    data: list[Model]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None


class OpenAiApp:
    """The handlers of one translator."""

    def __init__(
        self,
        triton: Triton,
        port: Port,
        catalog: Catalog,
        media_hosts: MediaHosts,
        metrics_socket: str = "",
        playground: Playground | None = None,
        kept: KeptResponses = NONE_KEPT,
        adapters: AdapterChanges | None = None,
    ) -> None:
        self._triton = triton
        self._about = About(triton, metrics_socket)
        self._media_hosts = media_hosts
        self._playground = playground
        self._adapters = adapters or AdapterChanges(catalog, None, "")
        self._catalog = catalog
        self._access = AccessCheck(port, playground.pages if playground else ())
        self._repeats = port.repeats
        self._lengths = ContextLengths(triton, port.repeats)
        self._kept = kept
        fitting = (
            (tgi.GENERATE_COMPAT.tasks, self._generating(tgi.GENERATE_COMPAT)),
            *((one.tasks, self._encoding(one)) for one in OF_ONE),
            (SPEECH_TASKS, self._hearing(self._sound)),
        )
        self._hub = OneModel(catalog, self._lengths, fitting)
        self._bodies = port.bodies
        self._started = int(time.time())

    def application(self) -> web.Application:
        """Everything under its path."""
        app = web.Application(
            middlewares=[followed, errors_in_the_apis_format, self._check_headers]
        )
        app.on_response_prepare.extend((send_id, self._access.send_cors))
        for route in with_schema(self._routes()):
            add = getattr(app.router, f"add_{route.method.lower()}")
            add(route.path, route.handler)
        if self._playground:
            self._playground.add_to(app.router, self._asked)
        return app

    def _routes(self) -> list[Route]:
        listed = Operation("The models that are ready", Models)
        known = Operation("One model", Model)
        return [
            *self._about.routes(),
            Route("/v1/models", self._models, listed),
            Route("/v1/models/{name:.+}", self._model, known),
            Route(f"{NAMED}/v1/models", self._models, listed),
            *(
                route
                for one in _GENERATING
                for route in routes_of((one.path,), self._generating(one), one)
            ),
            *(Route(one.path, self._keeping(one), one.operation, one.method) for one in KEPT),
            *(
                route
                for one in ENCODING
                for route in routes_of(one.paths, self._encoding(one), one)
            ),
            *(
                Route(path, self._hearing(partial(self._form, to)), speech.operation(to))
                for path, to in speech.PATHS.items()
            ),
            *self._adapters.routes(self._asked),
            *self._hub.routes(),
        ]

    @web.middleware
    async def _check_headers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The key first: nothing of a body is read before. aiohttp refuses two Host headers."""
        host = request.headers.get("Host", "")
        if not is_host(host.encode(errors="surrogateescape")) or request.url.user:
            raise ApiError(400, f"Host: {WRONG_HOST}")
        preflight = self._access.preflight(request)
        if preflight:
            return preflight
        self._access.enter(request)
        left = set[asyncio.Task[None]]()
        LEFT.set(left)
        try:
            check_encoding(request)
            return await handler(request)
        finally:
            self._access.leave(request, left)

    async def _asked(
        self, request: web.Request, read: Callable[[dict[str, Any]], Asked], more_bytes: int = 0
    ) -> Asked:
        """What the body asks for, or without one the query, of the model in the path where one is
        there; so many ``more_bytes`` may be read with it. Raises ApiError.
        """
        if request.method == "GET":
            return read(dict(request.query))
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

    async def _models(self, request: web.Request) -> web.Response:
        """All of them on one page, for OpenAI's clients and Anthropic's; or that of the path."""
        if "model" in request.match_info:
            found = [await self._catalog.find(request.match_info["model"])]
        else:
            models = await self._catalog.models()
            found = [models[name] for name in sorted(models)]
        described = await self._described(request, *found)
        first, last = (described[at].id if described else None for at in (0, -1))
        return json_response(Models(data=described, first_id=first, last_id=last))

    async def _model(self, request: web.Request) -> web.Response:
        model = await self._catalog.find(request.match_info["name"])
        return json_response((await self._described(request, model))[0])

    async def _described(self, request: web.Request, *models: ServedModel) -> list[Model]:
        lengths = await self._lengths.of(models)
        kinds = dict.fromkeys(KINDS, "model") if "anthropic-version" in request.headers else KINDS
        started = datetime.fromtimestamp(self._started, timezone.utc).isoformat()
        return [
            Model(
                id=model.name,
                created=self._started,
                root=model.alias_of or model.name,
                task=model.task,
                type=kinds[model.task],
                display_name=model.name,
                created_at=started,
                parent=model.name.partition(":")[0] if model.adapter else UNSET,
                max_model_len=length,
                max_input_tokens=length,
                state=state or UNSET,
            )
            for model in models
            for length in (lengths.get(model.triton_name) or UNSET,)
            for state in (cast("Any", self._repeats.state(model.triton_name)),)
        ]

    def _encoding(self, endpoint: EncoderEndpoint) -> Handler:
        async def encode(request: web.Request) -> web.StreamResponse:
            asked = await self._asked(request, endpoint.read)
            model = await self._catalog.find(asked.model or "", endpoint.tasks)
            answer_id = f"{endpoint.id_prefix}{uuid.uuid4().hex}"
            parameters = {**asked.of_caller(), **caller_of(request)}

            async def answer(model: ServedModel) -> web.Response:
                batch = asked.batch(model)
                requests = batch.requests(model, id_of(request, answer_id), parameters)
                ask = partial(self._triton.infer, metadata=trace_context(request))
                responses = await ask_all(ask, batch, requests)

                def written() -> web.Response:
                    found = batch.answers(responses)
                    response = json_response(asked.write(found, answer_id))
                    response.headers.update(found.headers)
                    return response

                return await aside(sum(one.ByteSize() for one in responses), written)

            return await self._retry_if_changed(model, answer)

        return encode

    async def _retry_if_changed(
        self,
        model: ServedModel,
        answer: Callable[[ServedModel], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """The answer. If Triton refuses the request because the model has changed since the catalog
        was read, for example into a streaming one, it is sent once more.
        """
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

    async def _form(self, task: str, request: web.Request) -> speech.SpeechRequest:
        return speech.read_form(task, await read_form(request, self._bodies))

    async def _sound(self, request: web.Request) -> speech.SpeechRequest:
        data = await read_body(request, self._bodies)
        read = partial(speech.read_sound, data, request.match_info.get("model", ""))
        return await aside(len(data), read)

    def _hearing(self, read: Callable[[web.Request], Awaitable[speech.SpeechRequest]]) -> Handler:
        async def hear(request: web.Request) -> web.StreamResponse:
            asked = await read(request)
            model = await self._catalog.find(asked.model, SPEECH_TASKS)
            request_id = id_of(request, f"tr-{uuid.uuid4().hex}")

            async def answer(model: ServedModel) -> web.Response:
                sent = speech.request(model, asked, request_id, caller_of(request))
                async with aclosing(
                    self._triton.responses(model, sent, trace_context(request))
                ) as found:
                    # To the end: Triton 24.10 may never forget a stream that is cancelled before.
                    [response] = [one async for one in found]
                written = speech.write(asked, speech.read_speech(response))
                return (
                    web.Response(text=written)
                    if isinstance(written, str)
                    else json_response(written)
                )

            try:
                return await self._retry_if_changed(model, answer)
            except ApiError as error:
                raise asked.names.of(error) from None

        return hear

    def _generating(self, endpoint: Endpoint) -> Handler:
        async def generate(request: web.Request) -> web.StreamResponse:
            earlier = self._earlier(request)
            own = endpoint.of_caller(earlier) if endpoint.of_caller else endpoint
            asked = await self._asked(request, own.read, earlier.num_bytes)
            model = await self._catalog.find(asked.model, endpoint.tasks)
            if asked.media:
                asked = await self._with_media(model, asked)

            async def answered(model: ServedModel) -> web.StreamResponse:
                answer = Answer(asked, f"{endpoint.id_prefix}{uuid.uuid4().hex}", model.task)
                request_id = id_of(request, answer.answer_id)
                caller, trace = caller_of(request), trace_context(request)
                chunks = self._chunks(model, asked, request_id, caller, trace)
                chunks = _in_callers_names(chunks, asked)
                writer = own.writer(answer)
                if asked.stream:
                    return await streamed(request, writer, chunks)
                found = await writer.whole(chunks)
                return await aside(answer.num_bytes, lambda: json_response(found))

            return await self._retry_if_changed(model, answered)

        return generate

    def _earlier(self, request: web.Request) -> EarlierResponses:
        """What the request may refer to."""
        owner = caller_of(request).get(CALLER, "")
        return EarlierResponses(self._kept, owner, owner or of_one_caller(request.remote or ""))

    def _keeping(self, path: KeptPath) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            earlier, response_id = self._earlier(request), request.match_info["id"]
            work = partial(path.answer, earlier, response_id, request.query)
            return json_response(await aside(earlier.num_bytes, work))

        return answer

    async def _with_media(self, model: ServedModel, asked: GenerationRequest) -> GenerationRequest:
        """The request with the files of its messages as tensors. Those that tools answer a model of
        texts are left out: its caller could not go on. Raises ApiError, 400.
        """
        if model.task not in MEDIA_TASKS:
            for part in asked.media:
                if not part.of_tool:
                    text = f"{part.field}: '{model.name}' ({model.task}) reads texts alone"
                    raise ApiError(400, text, part.field)
            return replace(asked, media=())
        media = await self._media_hosts.fetched(asked.media)
        inputs = tuple({**one, **tensors(media)} for one in asked.inputs)
        return replace(asked, inputs=inputs, media=media)

    def _chunks(
        self,
        model: ServedModel,
        asked: GenerationRequest,
        request_id: str,
        caller: Mapping[str, str],
        metadata: Metadata,
    ) -> Chunks:
        adapter = {"lora_name": model.adapter} if model.adapter else {}
        sources = [
            self._triton.generate(
                model,
                request_id,
                {**inputs, **adapter, **caller},
                outputs=asked.outputs,
                metadata=metadata,
            )
            for inputs in asked.inputs
        ]
        return merged(sources) if len(sources) > 1 else single(sources[0])


async def _in_callers_names(chunks: Chunks, asked: GenerationRequest) -> Chunks:
    """The chunks; an error names what its caller sent, such as a file's part of the messages."""
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield chunk
        except ApiError as error:
            placed = with_places(error, asked.media)
            raise (asked.names.of(error) if placed is error else placed) from None
