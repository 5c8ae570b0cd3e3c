"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as vLLM has them: a running model gets
an adapter that models.yaml does not name, or loses such a one. Both need the admin key.

``adapters_from`` in models.yaml says where an adapter may come from: entries of adapters_from.json
have ``model`` and ``local``: a folder, whose path is relative to the model's, with all that lies
within, a name on the Hub, or ORG/* for all of ORG's.
"""

# os.path rather than pathlib: it takes `..` and links as the operating system does.
# ruff: noqa: PTH113, PTH118

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from msgspec import Struct

from generator.errors import GeneratorError, RepositoryError
from generator.render.manifest import SOURCES_FILE
from generator.render.model_data import newest_json
from generator.repository import writing as writer
from generator.spec.model_source import is_hub_id, is_revision
from generator.spec.model_spec import MAX_ADAPTER_NAME, MAX_ADAPTERS
from generator.yaml_file.keys import name_pattern
from hf_triton.ports.openai.openapi import TEXT, Operation, Route
from hf_triton.ports.openai.schema.body import Filled, Json, read, refused
from hf_triton.ports.openai.schema.errors import ApiError, bad_field, of_field
from hf_triton.ports.openai.triton.catalog import Catalog
from hf_triton.ports.openai.triton.tensors import ServedModel
from hf_triton.ports.port import Port
from hf_triton.ports.refusal import HTTP_ADMIN_HEADER
from hf_triton.runtime.weights.hub_files import ADAPTER_FILES
from hf_triton.tritonserver import adapters

ReadBody = Callable[[web.Request, Callable[[Json], Any]], Awaitable[Any]]
Sources = Sequence[Any]
_FORMS = "a folder's absolute path, or ORG/NAME or ORG/NAME@REVISION of the Hub"
_NAME = re.compile(name_pattern(MAX_ADAPTER_NAME))
_NAMES = f"letters, digits and single _ - . between them, at most {MAX_ADAPTER_NAME} characters"


class LoadRequest(Struct, kw_only=True):
    lora_name: Filled
    lora_path: Filled
    load_inplace: refused("unload the adapter first", False) = None  # type: ignore[valid-type]


class UnloadRequest(Struct, kw_only=True):
    lora_name: Filled


class AdapterChanges:
    """The handlers."""

    def __init__(self, catalog: Catalog, port: Port) -> None:
        self._catalog, self._repository, self._port = catalog, port.repository, port
        self._changing = asyncio.Lock()

    def routes(self, read_body: ReadBody) -> list[Route]:
        load = Operation("Loads a LoRA adapter; needs the admin key", None, LoadRequest, (TEXT,))
        unload = Operation("Unloads an adapter; needs the admin key", None, UnloadRequest, (TEXT,))
        return [
            Route("/v1/load_lora_adapter", partial(self._load, read_body), load),
            Route("/v1/unload_lora_adapter", partial(self._unload, read_body), unload),
        ]

    async def _load(self, read_body: ReadBody, request: web.Request) -> web.Response:
        self._check_key(request)
        body = await read_body(request, partial(read, LoadRequest))
        model, name = await self._to_load(body.lora_name)
        allowed, folder = self._sources(model), self._repository / model.triton_name

        def edit(listed: list[Json]) -> list[Json]:
            source = _source_of(body.lora_path, allowed, folder)
            return _added(listed, {"name": name, **source, "loaded_at": time.time()})

        await self._change(model, edit)
        return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def _unload(self, read_body: ReadBody, request: web.Request) -> web.Response:
        self._check_key(request)
        named = (await read_body(request, partial(read, UnloadRequest))).lora_name
        models, _, name = await self._models_of(named)
        having = {one.entry: one for one in models.values() if name in one.adapters}
        if not having:
            raise _not_found(named)
        model = _only_one(list(having.values()), named)
        await self._change(model, partial(_removed, name=name))
        return web.Response(text=f"Success: LoRA adapter '{named}' removed successfully.")

    def _check_key(self, request: web.Request) -> None:
        """Raises RefusedError, 403, without the admin key."""
        given = ",".join(request.headers.getall(HTTP_ADMIN_HEADER, ()))
        self._port.check_admin_key(given.encode(errors="surrogateescape"), HTTP_ADMIN_HEADER)

    async def _models_of(self, named: str) -> tuple[Mapping[str, ServedModel], str, str]:
        """The models that ``MODEL:NAME`` or ``NAME`` may mean, then MODEL and NAME."""
        base, _, name = named.rpartition(":")
        models = await self._catalog.models()
        return {base: await self._catalog.find(base)} if base else models, base, name

    async def _to_load(self, named: str) -> tuple[ServedModel, str]:
        """The model that is to have the adapter, and the adapter's own name."""
        if not _NAME.fullmatch(named.rpartition(":")[2]):
            raise bad_field("lora_name", "another name", f"NAME or MODEL:NAME; NAME is {_NAMES}")
        served = await self._catalog.models()
        if named in served and not served[named].adapter:
            raise bad_field("lora_name", f"the name of a model, {named}", "MODEL:NAME, or another")
        models, base, name = await self._models_of(named)
        takers = {
            model.entry: model
            for model in models.values()
            if model.takes_adapters and not model.adapter and self._sources(model)
        }
        if not takers:
            which = f"model '{base}'" if base else "no model"
            takes = "takes no adapters" if base else "takes adapters"
            where = "name their folders or Hub ids under adapters_from in models.yaml"
            raise of_field("lora_name", f"{which} {takes} by requests: {where}", 403)
        return _only_one(list(takers.values()), named), name

    async def _change(self, model: ServedModel, edit: Callable[[list[Json]], list[Json]]) -> None:
        if self._port.retries.model(model.triton_name).is_coming:
            text = "is not loaded now; ask it something, or wait, and try again"
            raise ApiError(503, f"model: '{model.entry}' {text}")
        async with self._changing:
            await asyncio.to_thread(_change_list, self._repository, model, edit)
        self._catalog.forget()

    def _sources(self, model: ServedModel) -> Sources:
        folder = self._repository / model.triton_name
        found: Any = newest_json(folder, Path(SOURCES_FILE).name)
        return found or ()


def _change_list(
    repository: Path, model: ServedModel, edit: Callable[[list[Any]], list[Any]]
) -> None:
    """Changes the model's adapters by ``edit``, and waits until it serves them; otherwise changes
    nothing. Raises ApiError: 400 if it can't serve one, 503 if another change is under way or the
    model does not follow in time.
    """
    folder = repository / model.triton_name
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(writer.locked(repository))
        except RepositoryError as error:
            raise ApiError(503, f"{error}; try again") from None
        try:
            stack.enter_context(writer.locked_model(folder))
            adapters.change_list(folder, model.entry, edit)
        except adapters.AdaptersRefusedError as error:
            raise ApiError(400, str(error), "lora_path") from None
        except RepositoryError as error:
            raise ApiError(500, str(error)) from None
        except GeneratorError as error:
            raise ApiError(503, str(error)) from None


def _source_of(path: str, allowed: Sources, folder: Path) -> Json:
    """The source as adapters.json names it. Raises ApiError, 400, 403 or 404."""
    roots = [
        os.path.realpath(os.path.join(folder, one["model"])) for one in allowed if one["local"]
    ]
    on_hub = [str(one["model"]) for one in allowed if not one["local"]]
    text = "not allowed by adapters_from of the model in models.yaml: "
    forbidden = of_field("lora_path", text + ", ".join((*roots, *on_hub)), 403)
    if path.startswith("/") and path.isprintable():
        found = os.path.realpath(path)
        files = [os.path.realpath(os.path.join(found, name)) for name in ADAPTER_FILES]
        if not any(os.path.commonpath([root, found, *files]) == root for root in roots):
            raise forbidden
        if not os.path.isfile(files[0]):
            raise of_field("lora_path", f"no adapter there: no {ADAPTER_FILES[0]} in {found}", 404)
        return {"model": found, "local": True, "revision": None}
    name, _, revision = path.partition("@")
    if not is_hub_id(name) or (revision and not is_revision(revision)) or path.endswith("@"):
        raise bad_field("lora_path", "something else", _FORMS)
    org, slash, _ = name.partition("/")
    if not {name, f"{org}/*" if slash else name}.intersection(on_hub):
        raise forbidden
    return {"model": name, "local": False, "revision": revision or None}


def _only_one(models: Sequence[ServedModel], named: str) -> ServedModel:
    if len(models) > 1:
        listed = ", ".join(f"{model.entry}:{named}" for model in models)
        raise bad_field("lora_name", "a name without its model", listed)
    return models[0]


def _added(listed: list[Json], loaded: Json) -> list[Json]:
    for one in listed:
        if one["name"].lower() == loaded["name"].lower():
            _check_loaded(one)
            raise of_field("lora_name", f"'{loaded['name']}' is loaded already; unload it first")
    if len(listed) >= MAX_ADAPTERS:
        raise of_field("lora_name", f"the model has {MAX_ADAPTERS} adapters, no more are allowed")
    return [*listed, loaded]


def _removed(listed: list[Json], name: str) -> list[Json]:
    found = [one for one in listed if one["name"] == name]
    for one in found:
        _check_loaded(one)
    if not found:
        raise _not_found(name)
    return [one for one in listed if one not in found]


def _check_loaded(adapter: Mapping[str, Any]) -> None:
    if "loaded_at" not in adapter:
        text = "is in models.yaml: change it there, and run hf-triton apply"
        raise of_field("lora_name", f"'{adapter['name']}' {text}")


def _not_found(name: str) -> ApiError:
    return of_field("lora_name", f"no adapter '{name[:100]}' is loaded", 404)
