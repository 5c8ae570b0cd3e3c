"""Paths about the server, its models and the port itself; and those of Hugging Face's servers for
the one model that they serve: here at the port itself where one model alone fits, and under
/models/NAME of each.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any, Literal, cast

from aiohttp import ClientError, ClientSession, UnixConnector, web
from msgspec import UNSET, Struct, UnsetType

from generator.spec.task_sets import COMPLETION_TASKS, OPENAI_TASKS, SPEECH_TASKS
from hf_triton.ports.callers import Account
from hf_triton.ports.openai.exchanges import ACCOUNT, Handler, json_response
from hf_triton.ports.openai.openapi import EVENTS, TEXT, Operation, Route, document
from hf_triton.ports.openai.routes import tgi
from hf_triton.ports.openai.routes.encoders import rankings, texts
from hf_triton.ports.openai.routes.encoders.endpoint import MAX_INPUTS
from hf_triton.ports.openai.schema.errors import OF_MODEL, ApiError
from hf_triton.ports.openai.triton.catalog import Catalog
from hf_triton.ports.openai.triton.client import ContextLengths, Triton
from hf_triton.ports.openai.triton.tensors import ServedModel
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.ports.time_limit import timeout
from hf_triton.ports.triton_calls import QUESTION_TIMEOUT_S


class Health(Struct):
    status: Literal["ok"] = "ok"


class Version(Struct):
    version: str


class Model(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    display_name: str
    created: int
    created_at: str
    owned_by: str = "hf-triton"
    root: str  # the own name of a model that has others
    task: str
    type: Literal["model"] = "model"  # Anthropic's
    parent: str | UnsetType = UNSET  # the model of an adapter
    max_model_len: int | UnsetType = UNSET  # tokens; vLLM's name
    max_input_tokens: int | UnsetType = UNSET  # Anthropic's name
    state: Literal["asleep", "loading", "loaded", "leaving"] | UnsetType = UNSET


class Models(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None


class Info(Struct, kw_only=True):
    model_id: str
    model_pipeline_tag: str
    max_client_batch_size: int
    router: str = "hf-triton"
    version: str
    model_sha: None = None
    max_best_of: int | UnsetType = UNSET
    max_input_tokens: int | UnsetType = UNSET
    max_total_tokens: int | UnsetType = UNSET


_BODIES = (
    *(tgi.GenerateRequest, texts.EmbedRequest, rankings.SimilarityRequest, texts.PredictRequest),
)
# Texts; or each text's vector, similarity or labels.
OfOneModel = list[tgi.Generated | float | list[float | texts.Prediction]]
_ANY = Operation(
    *("The model's task, as TGI, TEI and the Hub", OfOneModel, _BODIES),
    also=(EVENTS,),
)
_INFO = Operation("The model, as TGI and TEI", Info)
MODEL = f"{OF_MODEL}{{model:.+}}"
_OF_MODEL = Operation("Any path for one model, such as /models/NAME/v1/rerank; without one, POST /")


class About:
    """The handlers. ``metrics`` are Triton's, at a Unix socket, and a caller's; ``fitting`` are the
    handlers of ``POST /`` for models of some tasks: the first where models of several are served.
    """

    def __init__(
        self,
        triton: Triton,
        catalog: Catalog,
        retries: RetryCoordinator,
        metrics: tuple[str, Callable[[Account | None], str]],
        fitting: Sequence[tuple[Sequence[str], Handler]],
    ) -> None:
        self._triton, self._catalog, self._retries = triton, catalog, retries
        self._lengths = ContextLengths(triton, retries)
        self._metrics_socket, self._own_metrics = metrics
        self._fitting = (*fitting, (SPEECH_TASKS, _refuse_sound))
        self._started = int(time.time())

    def routes(self) -> list[Route]:
        healthy = Operation("Whether Triton answers", Health)
        listed = Operation("The models that are ready", Models)
        return [
            Route("/", self._health, healthy),  # HEAD too: Claude Code looks whether it is there
            Route("/health", self._health, healthy),
            Route("/ping", self._health, healthy),
            Route("/version", _version, Operation("hf-triton's version", Version)),
            Route("/metrics", self._metrics, Operation("Metrics, of models too", also=(TEXT,))),
            Route("/v1/models", self._models, listed),
            Route("/v1/models/{name:.+}", self._model, Operation("One model", Model)),
        ]

    def last_routes(self) -> list[Route]:
        """These come last: a model's name may have slashes."""
        return [
            Route("/info", self._info, _INFO),
            Route("/", self._answer, _ANY),
            Route(MODEL, self._info, _OF_MODEL, "GET"),
            Route(MODEL, self._answer, _OF_MODEL, "POST"),
        ]

    async def _health(self, _request: web.Request) -> web.Response:
        if not await self._triton.is_live():
            raise ApiError(503, "no connection to Triton")
        return json_response(Health())

    async def _metrics(self, request: web.Request) -> web.Response:
        connector = UnixConnector(self._metrics_socket)
        try:
            async with (
                timeout(QUESTION_TIMEOUT_S),
                ClientSession(connector=connector) as session,
                session.get("http://localhost/metrics") as answer,
            ):
                text = await answer.text() + self._own_metrics(request.get(ACCOUNT))
                return web.Response(text=text, status=answer.status)
        except (ClientError, OSError, asyncio.TimeoutError):
            raise ApiError(503, "Triton's metrics can't be read; try again") from None

    async def _models(self, request: web.Request) -> web.Response:
        if "model" in request.match_info:
            found = [await self._catalog.find(request.match_info["model"])]
        else:
            models = await self._catalog.models()
            found = [models[name] for name in sorted(models)]
        described = await self._described(*found)
        first, last = (described[at].id if described else None for at in (0, -1))
        return json_response(Models(data=described, first_id=first, last_id=last))

    async def _model(self, request: web.Request) -> web.Response:
        model = await self._catalog.find(request.match_info["name"])
        return json_response((await self._described(model))[0])

    async def _described(self, *models: ServedModel) -> list[Model]:
        lengths = await self._lengths.of(models)
        started = datetime.fromtimestamp(self._started, timezone.utc).isoformat()
        return [
            Model(
                id=model.name,
                created=self._started,
                root=model.alias_of or model.name,
                task=model.task,
                display_name=model.name,
                created_at=started,
                parent=model.name.partition(":")[0] if model.adapter else UNSET,
                max_model_len=lengths.get(model.triton_name, UNSET),
                max_input_tokens=lengths.get(model.triton_name, UNSET),
                state=cast("Any", self._retries.model(model.triton_name).residence) or UNSET,
            )
            for model in models
        ]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        _, handler = await self._fit(request.match_info.get("model", ""))
        return await handler(request)

    async def _fit(self, name: str) -> tuple[Sequence[str], Handler]:
        """The tasks among which the model is, and the handler for them. Raises ApiError."""
        if name:
            served = {(await self._catalog.find(name, OPENAI_TASKS)).task}
        else:
            served = {one.task for one in (await self._catalog.models()).values()}
        found = (one for one in self._fitting if served & {*one[0]})
        return next(found, self._fitting[0])

    async def _info(self, request: web.Request) -> web.Response:
        name = request.match_info.get("model", "") or request.query.get("model", "")
        tasks, _ = await self._fit(name)
        model = await self._catalog.find(name, tasks)
        generates = model.task in COMPLETION_TASKS
        length = (await self._lengths.of((model,))).get(model.triton_name)
        found = Info(
            model_id=model.alias_of or model.name,
            model_pipeline_tag=model.task,
            max_best_of=1 if generates else UNSET,
            max_client_batch_size=1 if generates else MAX_INPUTS,
            max_input_tokens=length - 1 if length else UNSET,
            max_total_tokens=length or UNSET,
            version=version("hf-triton"),
        )
        return json_response(found)


def with_schema(routes: Sequence[Route]) -> list[Route]:
    async def schema(_request: web.Request) -> web.Response:
        # The first takes 0.3 s; neither the port's start nor other requests wait for it.
        return json_response(await asyncio.to_thread(described))

    operation = Operation("This port's OpenAPI schema", dict[str, Any])
    every = [*routes, Route("/openapi.json", schema, operation)]
    described = functools.cache(functools.partial(document, every))
    return every


async def _version(_request: web.Request) -> web.Response:
    return json_response(Version(version("hf-triton")))


async def _refuse_sound(request: web.Request) -> web.Response:
    raise ApiError(404, f"{request.path}: send a sound to /v1/audio/transcriptions")
