"""The lines of a batch's files, in OpenAI's format: a request, and what answers it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import ClientError, ClientSession
from msgspec import Meta, Struct

from hf_triton.ports.openai.schema.body import Json, read, read_object
from hf_triton.ports.openai.schema.errors import ApiError, bad_field, of_field

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
_WITHOUT_PRIORITY = "/v1/embeddings"
_MAX_MISTAKES = 100  # that are told of a file
_AWAY_S = 1.0  # after which a server that is not there is asked again
encode = msgspec.json.Encoder().encode


class Line(Struct):
    """One request; ``custom_id`` is its caller's name for it."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: Endpoint
    body: Json


class Mistake(Struct):
    """What is wrong with a line of the input; the first has the number 1."""

    code: str
    message: str
    param: str | None
    line: int | None


def read_line(text: bytes, endpoint: str = "") -> Line:
    """Reads a request, to ``endpoint`` if one is given. Raises ApiError, 400."""
    line = read(Line, read_object(text))
    if endpoint and line.url != endpoint:
        raise bad_field("url", line.url, f"{endpoint}, the batch's endpoint")
    if line.body.get("stream"):
        raise bad_field("body.stream", "another value", "false: a batch has whole answers")
    return line


def count_lines(texts: Iterable[bytes], endpoint: str = "") -> tuple[int, list[Mistake]]:
    """Returns the number of requests, and what is wrong with some; blank lines are left out."""
    known, mistakes, total = dict[str, int](), list[Mistake](), 0
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        total += 1
        try:
            name = read_line(text, endpoint).custom_id
            if (first := known.setdefault(name, number)) != number:
                got = f"got that of line {first} again, allowed: a new one"
                raise of_field("custom_id", got, code="duplicate_custom_id")
        except ApiError as error:
            what = error.param and error.param.replace(".", "_")
            code = error.code or (f"invalid_{what}" if what else "invalid_json_line")
            mistakes.append(Mistake(code, error.message, error.param, number))
    if not total:
        message = "the file: got no request, allowed: lines of JSON, each a request"
        mistakes.append(Mistake("empty_file", message, None, None))
    return total, mistakes[:_MAX_MISTAKES]


def answered(
    custom_id: str, response: Mapping[str, Any] | None, error: Mapping[str, str] | None = None
) -> bytes:
    """The line of an output."""
    line = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id}
    return encode({**line, "response": response, "error": error}) + b"\n"


async def ask(
    session: ClientSession, line: Line, headers: Mapping[str, str], priority: int = 0
) -> tuple[bool, bytes]:
    """Sends a request until it is answered: again while the server is away, or says when to ask
    again. Returns whether it succeeded, and the line of the output. ``priority`` is that of a
    request for text which has none of its own.
    """
    has_own = line.url == _WITHOUT_PRIORITY or "priority" in line.body
    added: Json = {} if has_own or not priority else {"priority": priority}
    while True:
        data = encode({**line.body, **added})
        try:
            async with session.post(line.url, data=data, headers=headers) as found:
                text = await found.read()
        except (ClientError, OSError):
            await asyncio.sleep(_AWAY_S)
            continue
        again = found.headers.get("Retry-After", "")
        if added and found.status == 400 and b'"param":"priority"' in text:
            added = {}  # an engine that has none
        elif found.status in (429, 503) and again.isdecimal():
            await asyncio.sleep(int(again))
        else:
            try:
                body = msgspec.json.decode(text)
            except msgspec.MsgspecError:
                body = text.decode(errors="replace")
            told = {"request_id": found.headers.get("X-Request-Id", ""), "body": body}
            answer = answered(line.custom_id, {"status_code": found.status, **told})
            return found.status == 200, answer
