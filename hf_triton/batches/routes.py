"""``/v1/files`` and ``/v1/batches`` of OpenAI's port. Each key has its own; without keys there is
one set for all callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from hf_triton.batches.objects import Batch, BatchRequest, Deleted, File, Page, Upload
from hf_triton.batches.runner import Runner
from hf_triton.batches.store import Store
from hf_triton.ports.openai.connections import form_fields, read_body
from hf_triton.ports.openai.exchanges import caller_of, json_response
from hf_triton.ports.openai.openapi import FORM, TEXT, Operation, Route
from hf_triton.ports.openai.schema.body import read
from hf_triton.ports.openai.schema.errors import bad_field
from hf_triton.ports.port import Port
from hf_triton.ports.settings import OpenAiPort
from hf_triton.runtime.request.request_parameters import CALLER

_MAX_LINES = 50_000  # OpenAI's
_FILE_NAME = re.compile(rb'filename="([^"\r\n]{1,255})"')
_HEAD_BYTES = 8192  # of a form, in which the file's name is
_NUMBER = re.compile(r"[0-9]{1,9}")


class BatchRoutes:
    """The handlers, and what works at their batches."""

    def __init__(self, settings: OpenAiPort, port: Port) -> None:
        self._port, self._store = port, Store(settings.batches)
        keys = {one.alias: one.key for one in port.access.callers} or {"": ""}
        most, retries = settings.batches.concurrent_requests, port.retries
        self._runner = Runner(self._store, keys, most, lambda: retries.num_in_flight)
        self._socket = str(Path(settings.metrics_socket).parent / "batches")

    def routes(self, asked: Callable[..., Awaitable[Any]]) -> list[Route]:
        """``asked`` reads a request's body."""
        files, batches, store, of = "/v1/files", "/v1/batches", self._store, self._of_id
        create = Operation("Have the requests of a file answered", Batch, BatchRequest)
        delete, cancel = Operation("Delete a file", Deleted), Operation("Cancel a batch", Batch)
        file, batch = Operation("A file", File), Operation("A batch", Batch)
        return [
            Route(files, self._upload, Operation("Upload a file", File, Upload, takes=FORM)),
            Route(files, partial(self._list, File), Operation("Your files", Page)),
            Route(f"{files}/{{id}}", partial(of, partial(store.find, File)), file),
            Route(f"{files}/{{id}}", partial(of, store.delete_file), delete, "DELETE"),
            Route(f"{files}/{{id}}/content", self._content, Operation("Its text", also=(TEXT,))),
            Route(batches, partial(self._create, asked), create),
            Route(batches, partial(self._list, Batch), Operation("Your batches", Page)),
            Route(f"{batches}/{{id}}", partial(of, partial(store.find, Batch)), batch),
            Route(f"{batches}/{{id}}/cancel", partial(of, store.cancel), cancel, "POST"),
        ]

    @contextlib.asynccontextmanager
    async def running(self, new: Callable[[], asyncio.Protocol]) -> AsyncIterator[None]:
        """Works at batches while the block runs. ``new`` makes a connection of the port."""
        server = await asyncio.get_running_loop().create_unix_server(new, self._socket)
        work = asyncio.create_task(self._runner.run(self._socket, lambda: self._port.is_stopping))
        try:
            yield
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            server.close()
            self._store.close()

    async def _upload(self, request: web.Request) -> web.Response:
        data = await read_body(request, self._port.bodies)
        form = form_fields(request.headers.get("Content-Type", ""), data)
        content = form.pop("file", [b""])[-1]
        texts = {name: values[-1].decode(errors="replace") for name, values in form.items()}
        given: dict[str, Any] = {"purpose": texts.get("purpose")}
        for name in ("anchor", "seconds"):
            if value := texts.get(f"expires_after[{name}]"):
                is_number = _NUMBER.fullmatch(value)
                given.setdefault("expires_after", {})[name] = int(value) if is_number else value
        asked = read(Upload, given)
        if not content.strip():
            raise bad_field("file", "an empty file, or none", "lines of JSON, each a request")
        if content.count(b"\n") > _MAX_LINES:
            raise bad_field("file", "more lines", f"at most {_MAX_LINES}")
        found = _FILE_NAME.search(data[:_HEAD_BYTES])
        name = found[1].decode(errors="replace") if found else "file"
        kept = (io.BytesIO(content), name, asked.expires_after.seconds)
        return json_response(await asyncio.to_thread(self._store.add_file, _owner(request), *kept))

    async def _create(self, asked: Callable[..., Any], request: web.Request) -> web.Response:
        wanted = await asked(request, partial(read, BatchRequest))
        new = await asyncio.to_thread(self._store.add_batch, _owner(request), wanted)
        self._runner.wake.set()
        return json_response(new)

    async def _of_id(self, work: Callable[[str, str], Any], request: web.Request) -> web.Response:
        found = await asyncio.to_thread(work, _owner(request), request.match_info["id"])
        self._runner.wake.set()  # a batch may have been cancelled
        return json_response(found)

    async def _list(self, kind: Any, request: web.Request) -> web.Response:
        query = request.query
        limit = query.get("limit", "20")
        if not _NUMBER.fullmatch(limit) or not int(limit):
            raise bad_field("limit", "something else", "a number above 0")
        found = await asyncio.to_thread(self._store.all, kind, _owner(request))
        wanted = query.get("purpose")
        found = [one for one in found if not wanted or getattr(one, "purpose", "") == wanted]
        found = found[::-1] if query.get("order") == "asc" else found
        ids = [one.id for one in found]
        after = query.get("after")
        if after and after not in ids:
            raise bad_field("after", "an id of none of them", "that of the last one of a page")
        begin = ids.index(after) + 1 if after else 0
        end = begin + int(limit)
        told = ids[begin:end] or [None]
        return json_response(Page(found[begin:end], told[0], told[-1], end < len(ids)))

    async def _content(self, request: web.Request) -> web.StreamResponse:
        file_id = request.match_info["id"]
        await asyncio.to_thread(self._store.find, File, _owner(request), file_id)
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        texts = self._store.texts(file_id)
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            while some := await asyncio.to_thread(next, texts, None):
                await response.write(b"".join(some))
            await response.write_eof()
        return response


def _owner(request: web.Request) -> str:
    return caller_of(request).get(CALLER, "")
