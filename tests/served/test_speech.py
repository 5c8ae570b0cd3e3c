"""Sounds over HTTP and gRPC of a real server, whole and as a stream."""

from __future__ import annotations

import json

import pytest

from tests.model.speech.test_on_stub import asking, segments_of
from tests.scenarios.triton_endpoints import GrpcEndpoint, HttpEndpoint
from tests.support.media_files import base64_text, sound_file
from tests.support.one_server import OneServer
from tests.support.tiny_whisper import speech
from tests.support.triton import Triton

MODEL = "whisper"


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models(MODEL)


def test_a_sound_is_transcribed_through_every_door(triton: Triton) -> None:
    sound = speech(5.0)
    request = asking(sound, return_timestamps="segments", stream=True)
    by_http, by_grpc = HttpEndpoint(triton), GrpcEndpoint(triton)
    whole = by_http.infer(MODEL, request)
    segments = segments_of(whole)
    assert len(segments) > 1
    assert segments_of(by_grpc.infer(MODEL, request)) == segments
    chunks = by_grpc.stream(f"{MODEL}_stream", request)
    assert [segment for chunk in chunks for segment in segments_of(chunk)] == segments
    body = {"audio": base64_text(sound_file(sound)), "return_timestamps": "segments"}
    answer = triton.generate(MODEL, **body)
    assert (answer.status, json.loads(answer.body["segments"])) == (200, segments)
    broken = by_http.infer(MODEL, asking(b"no sound"))
    assert broken.status == 400
    assert broken.error.startswith("audio: got a text that is not base64; send the file's bytes")
