"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as vLLM has them: a running model gets
an adapter that models.yaml does not name, or loses such a one. Who asks has the admin key.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec import Struct

from generator.spec.model_spec import MAX_ADAPTER_NAME, MAX_ADAPTERS
from generator.yaml_file.keys import name_pattern
from hf_triton.ports.admin import HTTP_HEADER, needs_key
from hf_triton.ports.openai.adapters.files import change, sources
from hf_triton.ports.openai.adapters.sources import source_of
from hf_triton.ports.openai.openapi_schema.document import TEXT, Operation, Route
from hf_triton.ports.openai.schema.body import Filled, Ignored, Json, read
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.triton.catalog import Catalog, ServedModel

ReadBody = Callable[[web.Request, Callable[[Json], Any]], Awaitable[Any]]
_NAME = re.compile(name_pattern(MAX_ADAPTER_NAME))
_NAMES = f"letters, digits and single _ - . between them, at most {MAX_ADAPTER_NAME} characters"


class LoadRequest(Struct, kw_only=True):
    """vLLM's."""

    lora_name: Filled
    lora_path: Filled
    load_inplace: bool | None = None
    is_3d_lora_weight: Ignored = None


class UnloadRequest(Struct, kw_only=True):
    """vLLM's."""

    lora_name: Filled
    lora_int_id: Ignored = None


class AdapterChanges:
    """The handlers; ``repository`` is None where Triton is elsewhere, ``is_down`` says whether one
    of Triton's models is to be loaded first.
    """

    def __init__(
        self,
        catalog: Catalog,
        repository: Path | None,
        admin_key: str,
        is_down: Callable[[str], bool] = lambda _name: False,
    ) -> None:
        self._catalog, self._repository, self._is_down = catalog, repository, is_down
        self._admin_key = admin_key.encode()
        self._changing = asyncio.Lock()

    def routes(self, read_body: ReadBody) -> list[Route]:
        """Both paths; ``read_body`` reads a JSON object."""
        load = Operation("Loads a LoRA adapter; needs the admin key", None, LoadRequest, (TEXT,))
        unload = Operation("Unloads one that was loaded so", None, UnloadRequest, (TEXT,))
        return [
            Route("/v1/load_lora_adapter", partial(self._load, read_body), load),
            Route("/v1/unload_lora_adapter", partial(self._unload, read_body), unload),
        ]

    async def _load(self, read_body: ReadBody, request: web.Request) -> web.Response:
        repository = self._checked(request)
        body = await read_body(request, partial(read, LoadRequest))
        model, name = await self._to_load(repository, body.lora_name)
        allowed, folder = sources(repository, model.triton_name), repository / model.triton_name

        def edit(listed: list[Json]) -> list[Json]:
            source = source_of(body.lora_path, allowed, folder)
            loaded = {"name": name, **source, "loaded_at": time.time()}
            return _added(listed, loaded, in_place=bool(body.load_inplace))

        await self._change(repository, model, edit)
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def _unload(self, read_body: ReadBody, request: web.Request) -> web.Response:
        repository = self._checked(request)
        named = (await read_body(request, partial(read, UnloadRequest))).lora_name
        model, name = await self._to_unload(named)
        await self._change(repository, model, partial(_removed, name=name))
        return web.Response(text=f"Success: LoRA adapter '{named}' removed successfully.")

    def _checked(self, request: web.Request) -> Path:
        """The repository. Raises ApiError: 403 without the admin key, 404 where Triton is
        elsewhere.
        """
        given = ",".join(request.headers.getall(HTTP_HEADER.decode(), ()))
        same = hmac.compare_digest(given.encode(errors="surrogateescape"), self._admin_key)
        if self._admin_key and not same:
            raise ApiError(403, needs_key(HTTP_HEADER).text)
        if self._repository is None:
            raise ApiError(404, f"{request.path}: Triton is elsewhere; ask the port of its serve")
        return self._repository

    async def _to_load(self, repository: Path, named: str) -> tuple[ServedModel, str]:
        """The model that is to have the adapter, and the adapter's own name."""
        base, _, name = named.rpartition(":")
        if not _NAME.fullmatch(name):
            raise bad_field("lora_name", "another name", f"NAME or MODEL:NAME; NAME is {_NAMES}")
        models = await self._catalog.models()
        if named in models and not models[named].adapter:
            raise bad_field("lora_name", f"the name of a model, {named}", "MODEL:NAME, or another")
        own = {base: await self._catalog.find(base)} if base else models
        takers = {
            model.entry: model
            for model in own.values()
            if model.takes_adapters and not model.adapter and sources(repository, model.triton_name)
        }
        if not takers:
            which = f"model '{base}'" if base else "no model"
            takes = "takes no adapters" if base else "takes adapters"
            where = "name their folders or Hub ids under adapters_from in models.yaml"
            raise ApiError(403, f"lora_name: {which} {takes} by requests: {where}", "lora_name")
        return _only_one(list(takers.values()), named), name

    async def _to_unload(self, named: str) -> tuple[ServedModel, str]:
        base, _, name = named.rpartition(":")
        models = await self._catalog.models()
        own = {base: await self._catalog.find(base)} if base else models
        having = {one.entry: one for one in own.values() if name in one.adapters}
        if not having:
            raise _not_found(named)
        return _only_one(list(having.values()), named), name

    async def _change(
        self, repository: Path, model: ServedModel, edit: Callable[[list[Json]], list[Json]]
    ) -> None:
        if self._is_down(model.triton_name):
            text = "is not loaded now; ask it something, or wait, and try again"
            raise ApiError(503, f"model: '{model.entry}' {text}", code="unavailable")
        async with self._changing:
            await asyncio.to_thread(change, repository, model, edit)
        self._catalog.forget()


def _only_one(models: Sequence[ServedModel], named: str) -> ServedModel:
    if len(models) > 1:
        listed = ", ".join(f"{model.entry}:{named}" for model in models)
        raise bad_field("lora_name", "a name without its model", listed)
    return models[0]


def _added(listed: list[Json], loaded: Json, *, in_place: bool) -> list[Json]:
    """The list with one more. Raises ApiError, 400."""
    name = loaded["name"]
    same = [one for one in listed if one["name"].lower() == name.lower()]
    for one in same:
        _check_loaded(one)
        if not in_place:
            text = f"lora_name: '{name}' is loaded already; load_inplace: true reads it anew"
            raise ApiError(400, text, "lora_name")
    others = [one for one in listed if one not in same]
    if len(others) >= MAX_ADAPTERS:
        raise ApiError(
            400, f"lora_name: the model has {MAX_ADAPTERS} adapters, no more are allowed"
        )
    return [*others, loaded]


def _removed(listed: list[Json], name: str) -> list[Json]:
    """The list without one. Raises ApiError, 400 or 404."""
    found = [one for one in listed if one["name"] == name]
    for one in found:
        _check_loaded(one)
    if not found:
        raise _not_found(name)
    return [one for one in listed if one not in found]


def _check_loaded(adapter: Mapping[str, Any]) -> None:
    if "loaded_at" not in adapter:
        text = "is in models.yaml: change it there, and run hf-triton apply"
        raise ApiError(400, f"lora_name: '{adapter['name']}' {text}", "lora_name")


def _not_found(name: str) -> ApiError:
    return ApiError(404, f"lora_name: no adapter '{name[:100]}' is loaded", "lora_name")
