"""Why models are not ready, as the supervisor of their server tells it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

WhyNotReady = Callable[[], Awaitable[Mapping[str, str]]]

_TIMEOUT = aiohttp.ClientTimeout(total=2)
_IS_LOADING = re.compile("is being loaded|waits to be loaded|LOADING")
_STAYS = re.compile("failed to load: (?!.*; it is loaded again)|.*; given up after ", re.DOTALL)


async def why_not_ready(health_url: str) -> Mapping[str, str]:
    """The reason of each model that is not ready, as ``health_url`` tells it; empty where nothing
    answers there.
    """
    if not health_url:
        return {}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(health_url) as answer,
        ):
            found: dict[str, str] = json.loads(await answer.read())["not_ready"]
            return found
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError, TypeError):
        return {}


def stays(reason: str) -> bool:
    """Whether such a model will not be ready until somebody corrects it."""
    return bool(_STAYS.match(reason))


def is_loading(reason: str) -> bool:
    """Whether such a model needs nothing but time."""
    return bool(_IS_LOADING.search(reason))
