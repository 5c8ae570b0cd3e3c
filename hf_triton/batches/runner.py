"""Answers the lines of batches: fewer at a time while others' requests are in flight.

It sends them to the port itself, over a socket that nobody else has, with the key of the batch's
owner: they are checked, counted and answered like any request.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import ClientSession, ClientTimeout, UnixConnector

from hf_triton.batches.lines import ask, read_line
from hf_triton.batches.objects import Batch
from hf_triton.batches.store import Store
from hf_triton.ports.openai.schema.body import MOST_INT32
from hf_triton.ports.openai.schema.errors import ApiError
from hf_triton.ports.time_limit import timeout

_LOOK_EVERY_S = 0.25  # while there are batches: for room that others leave
_LOOK_IDLE_S = 5.0  # for what another process has taken
_SWEEP_EVERY_S = 60
_FULL_S = 5.0  # after which an answer for which there was no room is kept


class Runner:
    """``keys`` are those of owners by their opaque names. A line begins where fewer than ``most``
    requests are in flight, of which ``num_in_flight`` are everybody's; one always may.
    """

    def __init__(
        self, store: Store, keys: Mapping[str, str], most: int, num_in_flight: Callable[[], int]
    ) -> None:
        self._store, self._keys, self._most = store, keys, most
        self._num_in_flight = num_in_flight
        self.wake = asyncio.Event()  # set where batches have changed
        # By the id of a batch and the number of the line.
        self._running: dict[str, dict[int, asyncio.Task[None]]] = defaultdict(dict)
        self._swept_at_s = 0

    async def run(self, socket: str, is_stopping: Callable[[], bool]) -> None:
        """Works until the port stops, while no other process does. ``socket`` is the port's."""
        client: dict[str, Any] = {"connector": UnixConnector(socket, limit=0)}
        async with ClientSession("http://batch", timeout=ClientTimeout(), **client) as session:
            try:
                while not is_stopping():
                    self.wake.clear()
                    pause_s = _LOOK_EVERY_S
                    # What is wrong with the folder is told to callers.
                    with contextlib.suppress(ApiError, OSError):
                        if await asyncio.to_thread(self._store.is_held):
                            pause_s = await self._step(session)
                    with contextlib.suppress(asyncio.TimeoutError):
                        async with timeout(pause_s):
                            await self.wake.wait()
            finally:
                for line in [one for lines in self._running.values() for one in lines.values()]:
                    line.cancel()

    async def _step(self, session: ClientSession) -> float:
        """Begins one more line of each batch, if there is room, and ends those that are done.
        Returns the seconds until the next step.
        """
        if self._store.now_s >= self._swept_at_s + _SWEEP_EVERY_S:
            self._swept_at_s = self._store.now_s
            await asyncio.to_thread(self._store.sweep)
        batches = await asyncio.to_thread(self._store.unfinished)
        for owner, batch in batches:
            lines, status = self._running[batch.id], ""
            if batch.status == "cancelling":
                status = "cancelled"
            elif batch.expires_at <= self._store.now_s:
                status = "expired"
            elif batch.status == "validating":
                await asyncio.to_thread(self._store.validate, owner, batch)
                self.wake.set()
            elif owner in self._keys and self._has_room():
                after = max(lines, default=0)
                found = await asyncio.to_thread(self._store.next_unanswered, batch, after)
                if found:
                    answering = self._answer(session, owner, batch, *found)
                    lines[found[0]] = asyncio.create_task(answering)
                    self.wake.set()
                elif not lines:
                    status = "completed"
            if status:
                for line in self._running.pop(batch.id).values():
                    line.cancel()
                await asyncio.to_thread(self._store.finish, owner, batch, status)
        return _LOOK_EVERY_S if batches else _LOOK_IDLE_S

    def _has_room(self) -> bool:
        num_running = sum(map(len, self._running.values()))
        return not num_running or max(num_running, self._num_in_flight()) < self._most

    async def _answer(
        self, session: ClientSession, owner: str, batch: Batch, number: int, text: bytes
    ) -> None:
        lines, key = self._running[batch.id], self._keys[owner]
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = await ask(session, read_line(text), headers, MOST_INT32)
            while True:
                try:
                    return await asyncio.to_thread(self._store.answer, batch, number, *answer)
                except ApiError as error:
                    told = f"hf-triton: an answer of {batch.id} waits: {error.message}\n"
                    sys.stderr.write(told)
                await asyncio.sleep(_FULL_S)
        finally:
            lines.pop(number, None)
            self.wake.set()
