"""How many lines of a batch are in flight at once, and what one is asked again for."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from generator.models_yaml.server_settings import Batches
from hf_triton.batches.objects import KEEP_S, Batch, BatchRequest
from hf_triton.batches.runner import Runner
from hf_triton.batches.store import Store

URL: Final = "/v1/completions"
LINES = [
    json.dumps({"custom_id": f"l{n}", "method": "POST", "url": URL, "body": {"n": n}}).encode()
    for n in range(12)
]
OWNER, KEY = "alice", "the-key"


class Port:
    """Answers on a Unix socket; each ``n`` first with the next of its ``errors``."""

    def __init__(self, errors: dict[int, list[tuple[int, Any]]]) -> None:
        self.errors, self.num_running, self.most_running = errors, 0, 0
        self.seen: list[tuple[Any, ...]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append((body["n"], body.get("priority"), request.headers["Authorization"]))
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        await asyncio.sleep(0.02)
        self.num_running -= 1
        if errors := self.errors.get(body["n"]):
            status, error = errors.pop(0)
            again = {"Retry-After": "0"} if status in (429, 503) else {}
            return web.json_response(error, status=status, headers=again, dumps=compact)
        return web.json_response({"text": "good"}, dumps=compact)


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


async def ran(folder: Path, port: Port, num_others: int) -> Batch:
    """A batch of LINES that has ended, while ``num_others`` requests were in flight."""
    store = Store(Batches(folder=str(folder / "kept")))
    file = store.add_file(OWNER, io.BytesIO(b"\n".join(LINES)), "in.jsonl", KEEP_S)
    batch = store.add_batch(OWNER, BatchRequest(file.id, URL, "24h"))
    app = web.Application()
    app.router.add_post(URL, port.answer)
    server = web.AppRunner(app)
    await server.setup()
    await web.UnixSite(server, str(folder / "socket")).start()
    runner = Runner(store, {OWNER: KEY}, 4, lambda: port.num_running + num_others)
    work = asyncio.create_task(runner.run(str(folder / "socket"), lambda: False))
    while (batch := store.find(Batch, OWNER, batch.id)).is_open:
        await asyncio.sleep(0.05)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await server.cleanup()
    store.close()
    return batch


@pytest.mark.parametrize("num_others, most", [(0, 4), (2, 3), (4, 1), (100, 1)])
def test_lines_take_the_room_that_others_leave(num_others: int, most: int, tmp_path: Path) -> None:
    port = Port({})
    batch = asyncio.run(ran(tmp_path, port, num_others))
    assert (batch.status, batch.request_counts.completed) == ("completed", len(LINES))
    assert port.most_running <= most
    assert sorted(seen[0] for seen in port.seen) == list(range(len(LINES)))


def test_a_line_is_asked_again_where_that_may_help(tmp_path: Path) -> None:
    unknown = {"error": {"param": "priority"}}
    port = Port({1: [(429, {}), (503, {})], 2: [(400, unknown)], 3: [(500, {})], 4: [(400, {})]})
    batch = asyncio.run(ran(tmp_path, port, 0))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (10, 2)
    numbers = [seen[0] for seen in port.seen]
    assert [numbers.count(n) for n in range(5)] == [1, 3, 2, 1, 1]
    assert [seen[1] for seen in port.seen if seen[0] == 2] == [2**31 - 1, None]
    assert {seen[2] for seen in port.seen} == {f"Bearer {KEY}"}
