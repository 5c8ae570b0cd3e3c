"""Images and sounds in chats: sent as tensors, fetched from allowed hosts alone, and refused by the
part of the message that they stand in.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from hf_triton.ports.openai.schema import media
from hf_triton.ports.openai.schema.errors import ApiError
from tests.support.http_server import Handler, serving_http
from tests.unit.openai_api.conftest import Reply, Starter, Translator
from tests.unit.openai_api.fake_triton import NO_IMAGE, Model

TASK = "image-text-to-text"
SEEING = (
    Model("see", "front", task=TASK),
    Model("see_stream", "engine", task=TASK),
    Model("rows", "whole", 4, task=TASK),
)
TEXT = {"type": "text", "text": "what?"}
FILE = b"\0\xff an image \n"


@pytest.fixture
def api(starter: Starter) -> Translator:
    return starter.api(*SEEING, Model("echo", "whole"))


def url(file: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def image(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address, "detail": "auto"}}


def sound(file: bytes) -> dict[str, Any]:
    data = base64.b64encode(file).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def asked(api: Translator, *parts: Any, **body: Any) -> Reply:
    messages = [{"role": "user", "content": list(parts)}]
    return api.chat(**{"model": "see", "messages": messages, **body})


def said(reply: Reply) -> str:
    param = reply.error["param"]
    assert (reply.status, param.partition("[")[0]) == (400, "messages")
    assert reply.error["message"].startswith(param)
    message: str = reply.error["message"]
    return message


@pytest.mark.parametrize("model, stream", [("see", False), ("see", True), ("rows", False)])
def test_files_become_tensors_in_the_order_of_the_chat(
    model: str, stream: bool, api: Translator
) -> None:
    parts = (image(url(FILE)), TEXT, sound(b"hum"), image(url(b"2")))
    reply = asked(api, *parts, model=model, stream=stream)
    assert reply.status == 200
    [seen] = api.triton.seen
    assert (seen["image"], seen["audio"]) == ([FILE, b"2"], [b"hum"])
    content = [{"type": "image"}, TEXT, {"type": "audio"}, {"type": "image"}]
    assert json.loads(seen["messages"]) == [{"role": "user", "content": content}]
    assert ([1, 2] if model == "rows" else [2]) in api.triton.shapes


def test_base64_is_decoded_piece_by_piece_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "PIECE", 4)
    file = bytes(range(256))
    assert media.decoded_file("f", base64.b64encode(file).decode(), is_url=False) == file
    for wrong in ("QQ==QUJD", "QUJ", "QU D", "=QUJ"):
        with pytest.raises(ApiError, match="allowed: base64"):
            media.decoded_file("f", wrong, is_url=False)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_about_a_file_names_its_part_of_the_message(stream: bool, api: Translator) -> None:
    reply = asked(api, image(url(FILE)), TEXT, image(url(NO_IMAGE)), stream=stream)
    assert said(reply) == "messages[0].content[2].image_url.url: 4 bytes that are not an image"


@pytest.mark.threat("data-addresses")
@pytest.mark.parametrize(
    "part, message",
    [
        (image("data:image/png;base64,A"), "image_url.url: got something else, allowed: base64"),
        (image("data:image/png;base64,"), "image_url.url: got an empty file, allowed: an image"),
        (image("data:,hello"), "image_url.url: got something else, allowed: a data: URL in"),
        (image("file:///etc/passwd"), "image_url.url: got something else, allowed: a data: URL in"),
        (
            image("data:" + "a" * 50_000),
            "image_url.url: got something else, allowed: a data: URL in",
        ),
        (image("/etc/passwd"), "image_url.url: got something else, allowed: a data: URL in"),
        ({"type": "image_url"}, "image_url: got none, allowed: a text"),
        ({"type": "image_url", "image_url": {"url": 3}}, "image_url.url: got 3, allowed: a text"),
        ({"type": "image_url", "image_url": {"uri": "a"}}, "image_url: uri: unknown field"),
        ({"type": "input_audio", "input_audio": {"data": "?"}}, "input_audio.data: got something"),
        (image("http://127.0.0.1/a"), "image_url.url: addresses are not fetched here, allowed: a"),
        (image("HTTPS://a.b/c"), "image_url.url: addresses are not fetched here, allowed: a data"),
    ],
)
def test_a_part_without_a_file_is_refused(part: Any, message: str, api: Translator) -> None:
    assert said(asked(api, TEXT, part)).startswith(f"messages[0].content[1].{message}")
    assert api.triton.seen == []


class _Files(Handler, BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(1.0)
        where = {"/moved": "/file", "/away": "http://localhost:1/", "/round": "/round"}
        self.send_response(302 if self.path in where else 200 if self.path != "/gone" else 404)
        if self.path in where:
            self.send_header("Location", where[self.path])
        self.end_headers()
        self.wfile.write(FILE)


@pytest.fixture
def files() -> Iterator[str]:
    """The host and port of a server of files."""
    with serving_http(_Files) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def fetching(starter: Starter, files: str) -> Translator:
    return starter.api(*SEEING, media_hosts=(files, files.replace("127.0.0.1", "localhost")))


def test_an_allowed_hosts_files_are_fetched(fetching: Translator, files: str) -> None:
    parts = (image(f"http://{files}/file"), image(url(b"2")), image(f"http://{files}/moved"))
    assert asked(fetching, *parts, TEXT).status == 200
    assert fetching.triton.seen[0]["image"] == [FILE, b"2", FILE]


@pytest.mark.threat("image-addresses")
@pytest.mark.parametrize(
    "address, message",
    [
        ("http://FILES/gone", "its host answers 404"),
        ("http://FILES/away", "its host is not one of those allowed here"),
        ("http://FILES/round", "got more redirects, allowed: 3"),
        ("http://FILES/slow", "it did not come within 0.3 seconds"),
        ("http://a:b@FILES/file", "it has a user name, allowed: none"),
        ("http://127.0.0.1:1/file", "its host is not one of those allowed here"),
        ("http://example.com/file", "its host is not one of those allowed here"),
        ("http://LOCALHOST/file", "its host has no public address"),
        ("http://FILES:no", "it could not be fetched"),
    ],
)
def test_what_may_not_be_fetched_is_refused(
    address: str,
    message: str,
    fetching: Translator,
    files: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media, "TIMEOUT_S", 0.3)
    address = address.replace("FILES", files)
    address = address.replace("LOCALHOST", files.replace("127.0.0.1", "localhost"))
    found = said(asked(fetching, image(address)))
    assert found.startswith(f"messages[0].content[0].image_url.url: {message}")
    assert fetching.triton.seen == []


@pytest.mark.threat("image-addresses")
def test_a_file_beyond_the_limit_and_too_many_addresses_are_refused(
    fetching: Translator, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = image(f"http://{files}/file")
    assert said(asked(fetching, *[one] * 17)).startswith("messages: got more addresses")
    monkeypatch.setattr(media, "MOST_BYTES", len(FILE) - 1)
    assert "got more, allowed: 0 MiB" in said(asked(fetching, one))


PUBLIC = ("8.8.8.8", "2606:4700::1111")
PRIVATE = (
    *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1"),
    *("::ffff:127.0.0.1", "2002:7f00:1::", "fe80::1%eth0", "fd00::1"),
)


@pytest.mark.threat("image-addresses")
def test_only_addresses_that_are_reachable_from_anywhere_are_public() -> None:
    assert [one for one in (*PRIVATE, *PUBLIC) if media.is_public(one)] == [*PUBLIC]
