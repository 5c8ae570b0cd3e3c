"""What Hugging Face's servers have of the one model that they serve: here at the port itself where
one model alone fits, and under /models/NAME of each.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.metadata import version

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi_schema.document import EVENTS, Operation, Route
from hf_triton.ports.openai.routes import speech, tgi
from hf_triton.ports.openai.routes.encoders import classify, embeddings, rankings
from hf_triton.ports.openai.routes.encoders.endpoint import MAX_INPUTS, EncoderEndpoint
from hf_triton.ports.openai.routes.endpoint import Endpoint
from hf_triton.ports.openai.schema.errors import OF_MODEL, OPENAIS, ApiError, HubError
from hf_triton.ports.openai.sending import Handler, json_response
from hf_triton.ports.openai.triton.catalog import ALL_TASKS, Catalog
from hf_triton.ports.openai.triton.context_lengths import ContextLengths

_BODIES = (
    *(tgi.GenerateRequest, embeddings.EmbedRequest, rankings.SimilarityRequest),
    *(classify.PredictRequest, speech.SoundRequest),
)
# Texts; or each text's vector, similarity or labels; or what was heard.
OfOneModel = list[tgi.Generated | float | list[float | classify.Prediction]] | speech.Heard


class Info(Struct, kw_only=True):
    """Of one model."""

    model_id: str
    model_pipeline_tag: str
    max_client_batch_size: int
    router: str = "hf-triton"
    version: str
    model_sha: None = None
    max_best_of: int | UnsetType = UNSET
    max_input_tokens: int | UnsetType = UNSET
    max_total_tokens: int | UnsetType = UNSET


_ANY = Operation(
    *("What the model does, as TGI, TEI and the Hub", OfOneModel, _BODIES),
    also=(EVENTS,),
    takes_file=True,
    error=HubError,
)
_NOT_DONE = Operation("Of TEI, and not done here", error=HubError)
_INFO = Operation("The model, as TGI and TEI", Info, error=HubError)
NAMED = f"{OF_MODEL}{{model:.+}}"


def routes_of(
    paths: Sequence[str], handler: Handler, endpoint: Endpoint | EncoderEndpoint
) -> list[Route]:
    """The endpoint's, and the same of one model where it has them."""
    routes = [Route(path, handler, endpoint.operation) for path in paths]
    hub = replace(endpoint.operation, error=HubError)
    for path in paths if endpoint.by_model else ():
        operation = endpoint.operation if path.startswith(OPENAIS) else hub
        operation = replace(operation, body=tuple(map(_named_by_path, operation.bodies)))
        routes.append(Route(f"{NAMED}{path}", handler, operation))
    return routes


@functools.cache
def _named_by_path(body: type[Struct]) -> type[Struct]:
    """The same where the path has the model's name."""
    bases, model = (body,), ("model", str | None, None)
    name = f"{body.__name__}OfOne"
    return msgspec.defstruct(name, [model], bases=bases, kw_only=True, module=body.__module__)


class OneModel:
    """The handlers; ``fitting`` are those of ``POST /`` for models of some tasks, the first of
    which counts where models of several are served.
    """

    def __init__(
        self,
        catalog: Catalog,
        lengths: ContextLengths,
        fitting: Sequence[tuple[Sequence[str], Handler]],
    ) -> None:
        self._catalog = catalog
        self._lengths = lengths
        self._fitting = fitting

    def routes(self) -> list[Route]:
        """The last ones: a model's name may have slashes."""
        return [
            Route("/info", self._info, _INFO),
            Route(f"{NAMED}/info", self._info, _INFO),
            *(Route(path, _refuse, _NOT_DONE, "POST") for path in ("/embed_all", "/embed_sparse")),
            Route("/", self._answer, _ANY),
            Route(NAMED, self._answer, _ANY),
        ]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        _, handler = await self._fit(request.match_info.get("model", ""))
        return await handler(request)

    async def _fit(self, name: str) -> tuple[Sequence[str], Handler]:
        """The tasks among which the model is, and what answers for them. Raises ApiError."""
        models = await self._catalog.models()
        if name not in models and (known := _known_before(name, models)):
            rest = name.removeprefix(known)
            raise ApiError(404, f"{OF_MODEL}{known} has no {rest[:100]}, see /openapi.json")
        served = (
            {(await self._catalog.find(name, ALL_TASKS)).task}
            if name
            else {one.task for one in models.values()}
        )
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


def _known_before(name: str, models: Collection[str]) -> str:
    """The model after whose name a path goes on; empty where there is none."""
    ends = (at for at, character in enumerate(name) if character == "/")
    return next((name[:at] for at in ends if name[:at] in models), "")


async def _refuse(request: web.Request) -> web.Response:
    text = f"{request.path}: models here make one vector of a text; ask /embed for it"
    raise ApiError(404, text)
