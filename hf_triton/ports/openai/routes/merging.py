"""Several asynchronous generators as one: whichever has something next gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")
# Enough that no source waits for the others, few enough that a slow reader holds them back.
_NUM_WAITING = 64


async def merged(
    sources: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[tuple[int, Item], None]:
    """Each source's items, with its number. An error of one ends all, and so does leaving."""
    found: asyncio.Queue[tuple[int, Item] | Exception | None] = asyncio.Queue(_NUM_WAITING)

    async def pass_on(number: int, source: AsyncGenerator[Item, None]) -> None:
        end = None
        try:
            async with aclosing(source):
                async for item in source:
                    await found.put((number, item))
        except Exception as error:  # noqa: BLE001, raised again below
            end = error
        await found.put(end)

    tasks = [asyncio.create_task(pass_on(*numbered)) for numbered in enumerate(sources)]
    num_running = len(tasks)
    try:
        while num_running:
            item = await found.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def single(source: AsyncGenerator[Item, None]) -> AsyncGenerator[tuple[int, Item], None]:
    """The same of a single source, without a task."""
    async with aclosing(source):
        async for item in source:
            yield 0, item
