"""The playground's paths. Its files hold no secret and are sent without a key; what the page asks
needs one, as every request does. Among it is ``/v2/models/NAME/generate`` as Triton has it: one
request of named values, which become the tensors that the model's configuration declares
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md).
"""

from __future__ import annotations

import asyncio
import functools
import math
import struct
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from aiohttp import web

from generator.render import model_config
from generator.render.sample_requests import sample_request
from generator.spec.task_sets import CHAT_TASKS, COMPLETION_TASKS
from generator.spec.triton_models import ARM_PARAMETER, ROLE_PARAMETER, STEPS, TASK_PARAMETER
from hf_triton.ports.openai.exchanges import caller_of, id_of, json_response, trace_context
from hf_triton.ports.openai.schema.body import short
from hf_triton.ports.openai.schema.errors import (
    ApiError,
    bad_field,
    model_is_loading,
    model_not_found,
    of_field,
)
from hf_triton.ports.openai.triton.catalog import Repository
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.openai.triton.tensors import (
    FORMATS,
    ServedModel,
    add_input,
    new_request,
    outputs_of,
    pack,
    unpack,
)
from hf_triton.ports.retries import RetryCoordinator
from hf_triton.tritonserver.model_state import State

ReadBody = Callable[[web.Request, Callable[[dict[str, Any]], dict[str, Any]]], Awaitable[Any]]
_HIDDEN_ROLES = ("engine", *STEPS)  # a front or an ensemble stands for them
_FOLDER = Path(__file__).with_name("page")
ROOT = "/playground/"
PATHS = frozenset({ROOT[:-1], ROOT, *(ROOT + file.name for file in _FOLDER.iterdir())})
# Nothing of another origin is loaded, asked or framed; no text becomes markup or a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(request: web.Request) -> web.StreamResponse:
    if request.path == ROOT[:-1]:
        return web.Response(status=308, headers={**_HEADERS, "Location": ROOT[1:]})
    name = request.path.removeprefix(ROOT) or "index.html"
    return web.FileResponse(_FOLDER / name, headers=_HEADERS)


class Playground:
    """The page, and what it asks of one Triton."""

    def __init__(self, triton: Triton, retries: RetryCoordinator, repository: Repository) -> None:
        self._triton, self._retries, self._repository = triton, retries, repository

    def add_to(self, router: web.UrlDispatcher, read_body: ReadBody) -> None:
        for path in sorted(PATHS):
            router.add_get(path, page)
        router.add_get(f"{ROOT}models", self._states)
        router.add_get(f"{ROOT}models/{{name}}", self._form)
        router.add_post("/v2/models/{name}/generate", functools.partial(self._generate, read_body))

    async def _states(self, _request: web.Request) -> web.Response:
        """Each model's name, state and, where it can be asked, task and versions."""
        versions = await self._triton.ready_models()
        configs = await asyncio.gather(*map(self._triton.config, versions))
        where: dict[str, Any] = {name: {"versions": some} for name, some in versions.items()}
        where |= {name: {"versions": [], "state": "asleep"} for name in self._retries.asleep()}
        found = {
            one.name: {**_described(one), **where[one.name]}
            for one in (*filter(None, configs), *self._repository.configs(self._retries.asleep()))
            if _is_public(one)
        }
        told = self._retries.not_ready()
        models = []
        for name in sorted({*found, *told}):
            state = {"state": "ready", **found.get(name, {})}
            if model := told.get(name):
                comes_back = model.state in (State.LOADING, State.HEALING)
                state["state"] = "loading" if comes_back else "failed"
                state["reason"] = model.reason
            models.append({"name": name, **state})
        return json_response({"models": models})

    async def _config(self, name: str) -> Any:
        asleep = self._repository.configs({name}.intersection(self._retries.asleep()))
        config = asleep[0] if asleep else await self._triton.config(name)
        told = self._retries.model(name)
        why = told.waits_for if told.is_coming else self._retries.why_loading(name)
        if config is None and why:
            raise model_is_loading(name, why)
        if config is None:
            raise model_not_found(name, sorted(await self._triton.ready_models()))
        return config

    async def _form(self, request: web.Request) -> web.Response:
        """The ``inputs`` of a model, and the values of a ``sample`` request."""
        name = request.match_info["name"]
        config = await self._config(name)
        inputs = [
            {
                "name": tensor.name,
                "datatype": _datatype(tensor),
                "is_list": list(tensor.dims) != [1],
                "optional": tensor.optional,
            }
            for tensor in config.input
        ]
        sample: Mapping[str, Any] = {one["name"]: "" for one in inputs if not one["optional"]}
        folder = self._repository.folder
        if (folder / name).is_dir():
            sample = await asyncio.to_thread(sample_request, folder, name, config)
        sample = sample or {one["name"]: "" for one in inputs[:1]}
        return json_response({"inputs": inputs, "sample": sample})

    async def _generate(self, read_body: ReadBody, request: web.Request) -> web.Response:
        values = await read_body(request, lambda body: body)
        config = await self._config(request.match_info["name"])
        request_id = id_of(request, f"gen-{uuid.uuid4().hex}")
        asked = _infer_request(config, values, request_id, caller_of(request))
        role = model_config.parameters(config).get(ROLE_PARAMETER)
        if role == "engine":
            text = "is the streaming part of a model: ask that model"
            raise ApiError(400, f"model: '{config.name}' {text}")
        streams = config.model_transaction_policy.decoupled
        model = ServedModel(
            *(config.name, config.name, "", streams, config.max_batch_size),
            is_ours=role is not None,
        )
        responses = self._triton.responses(model, asked, trace_context(request))
        async with aclosing(responses) as found:
            return json_response(_answer(await anext(found)))


def _is_public(config: Any) -> bool:
    parameters = model_config.parameters(config)
    return parameters.get(ROLE_PARAMETER) not in _HIDDEN_ROLES and ARM_PARAMETER not in parameters


def _described(config: Any) -> dict[str, Any]:
    parameters = model_config.parameters(config)
    task = parameters.get(TASK_PARAMETER, "")
    is_ours = ROLE_PARAMETER in parameters
    media = [one.name for one in config.input if one.name in ("image", "audio")]
    return {
        "task": task,
        "chats": is_ours and task in CHAT_TASKS,
        "completes": is_ours and task in COMPLETION_TASKS,
        "media": media if task in CHAT_TASKS else [],
    }


def _datatype(tensor: Any) -> str:
    name = model_config.type_word(tensor).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _infer_request(
    config: Any, values: Mapping[str, Any], request_id: str, caller: Mapping[str, str]
) -> Any:
    """A ModelInferRequest of one row. Raises ApiError, 400, for what the model does not take."""
    request = new_request(config.name, request_id, (), caller)
    declared = {tensor.name: tensor for tensor in config.input}
    for name, value in values.items():
        if name not in declared:
            raise ApiError(400, f"{short(name)}: unknown, allowed: {', '.join(declared)}", name)
        tensor = declared[name]
        elements = value if isinstance(value, list) else [value]
        is_whole = min(tensor.dims, default=1) > 0 and math.prod(tensor.dims) == len(elements)
        shape = list(tensor.dims) if is_whole else [len(elements)]
        batch = [1] if config.max_batch_size else []
        datatype = _datatype(tensor)
        if datatype not in ("BYTES", *FORMATS):
            raise of_field(name, f"{datatype} can't be sent as JSON, use gRPC")
        try:
            data = pack(datatype, elements)
        except (struct.error, OverflowError, TypeError):
            allowed = f"{datatype}, or a list of them, within its range"
            raise bad_field(name, "another value", allowed) from None
        add_input(request, name, datatype, batch + shape, data)
    return request


def _answer(response: Any) -> dict[str, Any]:
    data = outputs_of(response, ())
    found = {"model_name": response.model_name, "model_version": response.model_version}
    for output in response.outputs:
        of_type = output.datatype
        if of_type not in ("BYTES", *FORMATS):
            raise ApiError(501, f"the answer has {of_type}, which JSON can't show; use gRPC")
        elements = unpack(of_type, data[output.name])
        found[output.name] = elements[0] if len(elements) == 1 else elements
    return found
