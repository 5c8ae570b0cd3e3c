"""Fetches images and sounds from the hosts that the operator allows, and from no other.

A host's name must lead to public addresses: whoever answers for the name could point it at this
machine or its network. The connection goes to an address that was checked (no second look-up), and
a redirect is checked as the address was. A host that the operator gives as an address is allowed as
it is.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from hf_triton.ports.openai.schema.errors import ApiError, top
from hf_triton.ports.openai.schema.media import MediaPart
from hf_triton.ports.time_limit import timeout

MOST_BYTES = 32 * 2**20  # of a file
TIMEOUT_S = 10.0
_MOST_REDIRECTS = 3
_MOST_AT_ONCE = 16  # of all requests
_MOST_OF_A_REQUEST = 16
_REDIRECTS = (301, 302, 303, 307, 308)


class MediaHosts:
    """The hosts that may be asked. Used within one event loop; ``close`` it in the end."""

    def __init__(self, hosts: Collection[str] = ()) -> None:
        """``hosts`` are names or addresses, ``HOST`` or ``HOST:PORT``."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetched(self, media: Sequence[MediaPart]) -> tuple[MediaPart, ...]:
        if sum(part.address is not None for part in media) > _MOST_OF_A_REQUEST:
            name = top(media[0].field)
            text = f"{name}: got more addresses, allowed: {_MOST_OF_A_REQUEST} in one request"
            raise ApiError(400, text, name)
        tasks = [asyncio.ensure_future(self._fetched(part)) for part in media]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _fetched(self, part: MediaPart) -> MediaPart:
        if part.address is None:
            return part
        try:
            async with self._slots, timeout(TIMEOUT_S):
                file = await self._get(part.address)
        except _RefusedError as error:
            raise _error(part, str(error)) from None
        except asyncio.TimeoutError:
            raise _error(part, f"it did not come within {TIMEOUT_S:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _error(part, f"it could not be fetched ({type(error).__name__})") from None
        return replace(part, file=file, address=None)

    async def _get(self, address: str) -> bytes:
        url = URL(address)
        for _ in range(_MOST_REDIRECTS + 1):
            self._check(url)
            async with self._client().get(url, allow_redirects=False) as answer:
                if answer.status not in _REDIRECTS:
                    return await _body(answer)
                url = url.join(URL(answer.headers.get("Location", "")))
        raise _RefusedError(f"got more redirects, allowed: {_MOST_REDIRECTS}")

    def _check(self, url: URL) -> None:
        host = (url.host or "").lower()
        host = f"[{host}]" if ":" in host else host
        if not self._hosts:
            raise _RefusedError(
                "addresses are not fetched here, allowed: a data: URL (the operator may allow "
                "hosts by --openai-media-hosts)"
            )
        standard = {"http": 80, "https": 443}.get(url.scheme)
        named = {f"{host}:{url.port}", host if url.port == standard else ""}
        if standard is None or self._hosts.isdisjoint(named):
            raise _RefusedError(
                "its host is not one of those allowed here (--openai-media-hosts); a data: URL "
                "always is"
            )
        if url.user or url.password:
            raise _RefusedError("it names a user, allowed: none")

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=_PublicResolver(), use_dns_cache=False)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                # A small encoded file can be a huge one.
                auto_decompress=False,
                headers={"Accept-Encoding": "identity", "User-Agent": "hf-triton"},
            )
        return self._session


class _RefusedError(Exception):
    """Something that is not done for any caller."""


class _PublicResolver(AbstractResolver):
    """Resolves a name to its public addresses alone."""

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        public = [one for one in found if is_public(one["host"])]
        if not public:
            raise _RefusedError("its host is no public one; the operator can allow its address")
        return public

    async def close(self) -> None:
        await self._resolver.close()


def is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None) or found
    return bool(mapped.is_global) and not mapped.is_multicast


async def _body(answer: Any) -> bytes:
    if answer.status != 200:
        raise _RefusedError(f"its host answers {answer.status}")
    data = bytearray()
    async for chunk in answer.content.iter_chunked(2**16):
        data += chunk
        if len(data) > MOST_BYTES:
            raise _RefusedError(f"got more, allowed: {MOST_BYTES >> 20} MiB")
    if not data:
        raise _RefusedError("an empty file")
    return bytes(data)


def _error(part: MediaPart, text: str) -> ApiError:
    return ApiError(400, f"{part.field}: {text}", part.field)
