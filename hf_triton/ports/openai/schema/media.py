"""The images and sounds of a chat's messages: taken out of them, fetched from the hosts that the
operator allows and from no other, and sent as tensors.

A host's name must lead to public addresses: whoever answers for the name could point it at this
machine or its network. The connection goes to an address that was checked (no second look-up), and
a redirect is checked as the address was. A host that the operator gives as an address is allowed as
it is.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from hf_triton.ports.openai.schema.body import convert, short
from hf_triton.ports.openai.schema.errors import bad_field, of_field, top
from hf_triton.ports.time_limit import timeout

# The types of parts that hold a file, and the tensor that it goes to; audio_url is vLLM's.
_TENSORS = {"image_url": "image", "input_audio": "audio", "audio_url": "audio"}
# A part's keys beside the file: the detail to look at, or the type that the file states itself.
# Neither is needed.
_BESIDE = ("detail", "format")
PIECE = 1 << 20  # characters; a multiple of 4
_DATA_URL = re.compile(r"data:[\w.+-]*(?:/[\w.+-]*)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
MOST_BYTES = 32 * 2**20  # of a file
TIMEOUT_S = 10.0
_MOST_REDIRECTS = 3
_MOST_AT_ONCE = 16  # of all requests
_MOST_OF_A_REQUEST = 16
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class MediaPart:
    tensor: str  # that it goes to
    field: str  # that errors name
    file: bytes = b""
    address: str | None = None  # from where the file is still to be fetched
    of_tool: bool = False  # whether a tool has answered it


def take_media(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Any], tuple[MediaPart, ...]]:
    """Takes the files out of messages: each leaves its type. Raises ApiError, 400."""
    found: list[MediaPart] = []
    taken = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            parts = []
            for n, part in enumerate(content):
                of_type = str(part.get("type")) if isinstance(part, dict) else ""
                if of_type in _TENSORS:
                    where = f"messages[{number}].content[{n}].{of_type}"
                    one = _media_part(where, of_type, part.get(of_type))
                    found.append(replace(one, of_tool=message.get("role") == "tool"))
                    part = {"type": one.tensor}
                parts.append(part)
            message = {**message, "content": parts}
        taken.append(message)
    return taken, tuple(found)


def tensors(media: Sequence[MediaPart]) -> dict[str, list[bytes]]:
    names = {part.tensor for part in media}
    return {name: [part.file for part in media if part.tensor == name] for name in sorted(names)}


def element_names(media: Sequence[MediaPart]) -> dict[str, str]:
    """The fields of the files by the tensors' elements that a model's errors name: ``image[1]``."""
    return {
        f"{tensor}[{number}]": part.field
        for tensor in {*_TENSORS.values()}
        for number, part in enumerate(part for part in media if part.tensor == tensor)
    }


def _media_part(field: str, of_type: str, value: Any) -> MediaPart:
    tensor = _TENSORS[of_type]
    key = "data" if of_type == "input_audio" else "url"
    if isinstance(value, Mapping):
        unknown = next((name for name in value if name not in (key, *_BESIDE)), None)
        if unknown is not None:
            raise of_field(field, f"{short(unknown)}: unknown field")
        value = value.get(key)
        field = f"{field}.{key}"
    text: str = convert(str, value, field)
    if key == "url" and _ADDRESS.match(text):
        return MediaPart(tensor, field, address=text)
    return MediaPart(tensor, field, decoded_file(field, text, is_url=key == "url"))


def decoded_file(field: str, value: str, *, is_url: bool) -> bytes:
    prefix = _DATA_URL.match(value)
    if is_url and prefix is None:
        raise bad_field(field, "something else", "a data: URL in base64, or an address by http")
    packed = value[prefix.end() :] if prefix else value
    # Piece by piece: nothing else in this process runs during one.
    pieces = (packed[at : at + PIECE] for at in range(0, len(packed), PIECE))
    try:
        if "=" in packed[:-2]:
            raise ValueError("padding before the end")
        file = b"".join(base64.b64decode(piece, validate=True) for piece in pieces)
    except ValueError:
        raise bad_field(field, "something else", "base64") from None
    if not file:
        raise bad_field(field, "an empty file", "an image" if is_url else "a sound")
    return file


class MediaHosts:
    """The hosts that may be asked. Made and used within one event loop; ``close`` it in the end."""

    def __init__(self, hosts: Collection[str] = ()) -> None:
        """``hosts`` are names or addresses, ``HOST`` or ``HOST:PORT``."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=_PublicResolver(), use_dns_cache=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # a small encoded file can be a huge one
            headers={"Accept-Encoding": "identity", "User-Agent": "hf-triton"},
        )
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    async def close(self) -> None:
        await self._session.close()

    async def fetched(self, media: Sequence[MediaPart]) -> tuple[MediaPart, ...]:
        if sum(part.address is not None for part in media) > _MOST_OF_A_REQUEST:
            allowed = f"{_MOST_OF_A_REQUEST} in one request"
            raise bad_field(top(media[0].field), "more addresses", allowed)
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
            raise of_field(part.field, str(error)) from None
        except asyncio.TimeoutError:
            raise of_field(part.field, f"it did not come within {TIMEOUT_S:g} seconds") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = f"it could not be fetched ({type(error).__name__})"
            raise of_field(part.field, text) from None
        return replace(part, file=file, address=None)

    async def _get(self, address: str) -> bytes:
        url = URL(address)
        for _ in range(_MOST_REDIRECTS + 1):
            self._check(url)
            async with self._session.get(url, allow_redirects=False) as answer:
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
            raise _RefusedError("it has a user name, allowed: none")


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
            raise _RefusedError("its host has no public address; the operator can allow it")
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
