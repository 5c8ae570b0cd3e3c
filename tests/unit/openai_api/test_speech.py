"""``/v1/audio``: a file of a form becomes a tensor, and the answer text, JSON or subtitles."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from hf_triton.runtime.request.request_parameters import CALL
from tests.unit.openai_api.conftest import Reply, Translator
from tests.unit.openai_api.fake_triton import NO_ANSWER, NO_IMAGE, NUMBERS, SEGMENTS

SOUND = b"RIFF\r\n--\0\xff sound \r\n"
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"


def form(*parts: tuple[str, bytes | str]) -> bytes:
    pieces = []
    for name, value in parts:
        filename = '; filename="a.wav"' if name == "file" else ""
        data = value if isinstance(value, bytes) else value.encode()
        head = f'--line\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
        pieces.append(head.encode() + data + b"\r\n")
    return b"".join(pieces) + b"--line--\r\n"


def send(api: Translator, path: str, data: bytes, kind: str = "multipart/form-data") -> Reply:
    headers = {"Content-Type": f"{kind}; boundary=line", **api.headers}
    request = urllib.request.Request(api.url + path, data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return Reply(response.status, dict(response.headers), response.read().decode())
    except urllib.error.HTTPError as error:
        return Reply(error.code, dict(error.headers), error.read().decode())


def ask(api: Translator, path: str = TRANSCRIPTIONS, **fields: str) -> Reply:
    given = {"model": "hears", **fields}
    return send(api, path, form(("file", SOUND), *given.items()))


@pytest.mark.parametrize("model", ["hears", "hears_rows"])
def test_a_file_and_its_fields_become_tensors(api: Translator, model: str) -> None:
    fields = {"language": "de", "prompt": "names: Zoë", "temperature": "0.5", "user": "me"}
    reply = ask(api, model=model, **fields)
    assert (reply.status, reply.body) == (200, {"text": "One. Two."})
    seen = api.triton.seen[-1]
    seen.pop(CALL)
    assert seen.pop("model") == ("hears_stream" if model == "hears" else model)
    assert seen == {
        "audio": SOUND,
        "language": "de",
        "prompt": "names: Zoë",
        "temperature": 0.5,
        "user": "me",
    }
    assert {tuple(shape) for shape in api.triton.shapes[-4:]} == {
        (1,) if model == "hears" else (1, 1)
    }


def test_verbose_json_has_segments(api: Translator) -> None:
    body = ask(api, response_format="verbose_json").body
    assert body == {
        "task": "transcribe",
        "language": "french",
        "duration": 3.5,
        "text": "One. Two.",
        "segments": [{"id": n, **segment, **NUMBERS} for n, segment in enumerate(SEGMENTS)],
    }
    assert api.triton.seen[-1].get("task") is None
    more = {"timestamp_granularities[]": "segment", "stream": "false"}
    body = ask(api, TRANSLATIONS, response_format="verbose_json", **more).body
    assert api.triton.seen[-1]["task"] == "translate"
    assert (body["task"], body["language"]) == ("translate", "english")


SRT = "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n00:00:01,500 --> 01:01:01,250\nTwo.\n"
VTT = "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n00:00:01.500 --> 01:01:01.250\nTwo.\n"


@pytest.mark.parametrize(
    "response_format, text",
    [("text", "One. Two.\n"), ("srt", SRT), ("vtt", VTT)],
    ids=["text", "srt", "vtt"],
)
def test_a_text_has_the_format_that_is_asked_for(
    api: Translator, response_format: str, text: str
) -> None:
    reply = ask(api, response_format=response_format)
    assert (reply.status, reply.text) == (200, text)
    assert reply.headers["Content-Type"].startswith("text/plain")


HEARS = [("file", SOUND), ("model", "hears")]


@pytest.mark.parametrize(
    "parts, message",
    [
        ([("model", "hears")], "file: got none, allowed: a sound"),
        ([("file", SOUND)], "model: got none, allowed: a text"),
        ([("file", SOUND), ("file", SOUND)], "file: got 2 values, allowed: one"),
        ([("file", SOUND), ("stream", "true")], "stream: got another text, allowed: False, false"),
        ([*HEARS, ("keywords[]", "a")], "keywords[]: unknown or unsupported field"),
        (
            [*HEARS, ("response_format", "xml")],
            "response_format: got another text, allowed: json, srt",
        ),
        ([*HEARS, ("temperature", "warm")], "temperature: got a text, allowed: a number"),
        (
            [*HEARS, ("timestamp_granularities[]", "word")],
            "timestamp_granularities[][0]: got another text, allowed: segment",
        ),
        ([("file", NO_IMAGE), ("model", "hears")], "file: 4 bytes that are not a sound; allowed:"),
    ],
)
def test_what_is_wrong_is_named(api: Translator, parts: list[Any], message: str) -> None:
    reply = send(api, TRANSCRIPTIONS, form(*parts))
    assert (reply.status, reply.error["param"]) == (400, message.partition(":")[0])
    assert reply.error["message"].startswith(message)


def test_a_stream_that_ends_without_a_response_ended_early(api: Translator) -> None:
    reply = send(api, TRANSCRIPTIONS, form(("file", NO_ANSWER), ("model", "hears")))
    assert (reply.status, reply.error["message"]) == (500, "the model's answer ended early")


def test_a_body_that_is_no_form_is_refused(api: Translator) -> None:
    assert send(api, TRANSCRIPTIONS, b"{}", "application/json").status == 415
    reply = send(api, TRANSCRIPTIONS, b"no form at all")
    assert (reply.status, reply.error["message"][:30]) == (400, "the body is not the multipart ")


@pytest.mark.threat("openai-forms")
@pytest.mark.parametrize(
    "data, said",
    [
        (form(*[("user", "me")] * 33), "the body: got more fields, allowed: at most 32"),
        (form(*[("user", "me")] * 200_000), "the body: got more fields, allowed: at most 32"),
        (form(("file", SOUND)).removesuffix(b"--\r\n"), "the body is not the multipart "),
        (
            b"--line\r\n" + b"a: b\r\n" * 9999 + b"\r\n\r\n--line--",
            "the body is not the multipart ",
        ),
        (b"\n" * 3_000_000, "the body is not the multipart "),
        (b"--line\r\n\r\nx\r\n--line--\r\n", "the body is not the multipart "),
        (form(("a\"; filename*=x''%ff", "x")), "a: unknown or unsupported field"),
    ],
    ids=["33 fields", "200,000", "no end", "heads", "lines", "no name", "encoded file name"],
)
def test_a_form_of_whatever_shape_is_read_in_no_time(
    api: Translator, data: bytes, said: str
) -> None:
    began_s = time.process_time()
    reply = send(api, TRANSCRIPTIONS, data)
    assert (reply.status, reply.error["message"][: len(said)]) == (400, said)
    assert time.process_time() - began_s < 3, "the translator is in this process"


@pytest.mark.threat("openai-forms")
def test_a_sound_may_hold_what_looks_like_a_boundary(api: Translator) -> None:
    sound = b"x--line\r\n\r\n--lin\r\n\n--line--" * 3
    assert send(api, TRANSCRIPTIONS, form(("file", sound), ("model", "hears"))).status == 200
    assert api.triton.seen[-1]["audio"] == sound


def test_a_sound_posted_to_its_model_is_told_where_to_go(api: Translator) -> None:
    reply = send(api, "/models/hears", SOUND, "audio/flac")
    assert (reply.status, reply.body["error"]) == (
        *(404, "/models/hears: send a sound to /v1/audio/transcriptions"),
    )
    assert api.get("/models/hears/info").body["model_id"] == "hears"
