"""The playground's paths."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from hf_triton.ports.openai.access import caller_of
from hf_triton.ports.openai.playground import generate, pages
from hf_triton.ports.openai.playground.models import Models, is_ours, one_answer
from hf_triton.ports.openai.sending import json_response
from hf_triton.ports.openai.triton.catalog import ServedModel
from hf_triton.ports.openai.triton.client import Triton
from hf_triton.ports.openai.triton.request_headers import id_of, trace_context

ReadBody = Callable[[web.Request, Callable[[dict[str, Any]], dict[str, Any]]], Awaitable[Any]]


class Playground:
    """The page, and what it asks of one Triton."""

    pages = pages.PATHS

    def __init__(self, triton: Triton, models: Models) -> None:
        self._triton, self._models = triton, models

    def add_to(self, router: web.UrlDispatcher, read_body: ReadBody) -> None:
        """Adds the paths; ``read_body`` reads a JSON object."""
        for path in sorted(pages.PATHS):
            router.add_get(path, pages.page)
        router.add_get(f"{pages.ROOT}models", self._states)
        router.add_get(f"{pages.ROOT}models/{{name}}", self._form)
        router.add_post("/v2/models/{name}/generate", functools.partial(self._generate, read_body))

    async def _states(self, _request: web.Request) -> web.Response:
        return json_response({"models": await self._models.states()})

    async def _form(self, request: web.Request) -> web.Response:
        return json_response(await self._models.form(request.match_info["name"]))

    async def _generate(self, read_body: ReadBody, request: web.Request) -> web.Response:
        values = await read_body(request, lambda body: body)
        config = await self._models.config(request.match_info["name"])
        request_id = id_of(request, f"gen-{uuid.uuid4().hex}")
        asked = generate.infer_request(config, values, request_id, caller_of(request))
        model = ServedModel(
            *(config.name, config.name, "", not one_answer(config), config.max_batch_size),
            is_ours=is_ours(config),
        )
        responses = self._triton.responses(model, asked, trace_context(request))
        async with aclosing(responses) as found:
            return json_response(generate.answer(await anext(found)))
