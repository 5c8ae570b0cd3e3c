"""Images and sounds that take much, and the others beside them, on a real server."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import pytest

from tests.served.hostile.beside import Beside, sent
from tests.support import media_bombs as bombs
from tests.support.media_files import base64_text, png
from tests.support.one_server import OneServer
from tests.support.triton import Answer, Triton

MOST_TIMES = 25  # as long as alone; some three times on two quiet cores
CHAT = json.dumps([{"role": "user", "content": "What colour is it?"}])


@pytest.fixture(scope="module")
def triton(one_server: OneServer) -> Triton:
    return one_server.with_models("see")


def timed(ask: Callable[[], Answer]) -> float:
    began_s = time.monotonic()
    answer = ask()
    assert answer.status == 200, answer.body
    return time.monotonic() - began_s


def longest_beside(beside: Beside, ask: Callable[[], Answer]) -> float:
    """Of what is asked until the others are answered."""
    taken = [timed(ask)]
    while beside.is_going_on:
        taken.append(timed(ask))
    return max(taken)


@pytest.mark.threat("slow-media")
def test_images_that_take_long_delay_no_text(triton: Triton) -> None:
    def text() -> Answer:
        return triton.generate("see", messages=CHAT, max_tokens=4)

    many, slow = (
        {"text_input": "What colour is it?", "image": base64_text(file), "max_tokens": 1}
        for file in (bombs.jpeg_of_scans(2000), bombs.jpeg_of_scans(256))
    )
    triton.generate("see", **slow)
    alone_s = statistics.median(timed(text) for _ in range(9))
    beside = sent(triton.url("see", "generate"), many, many, *[slow] * 6)
    assert longest_beside(beside, text) < MOST_TIMES * alone_s
    refused = [answer.body["error"] for answer in beside.answers if answer.status != 200]
    said = "image[0]: got a JPEG image of 2000 scans, at most 256 of 4194304 pixels each"
    assert [text[: len(said)] for text in refused] == [said] * 2
    late = triton.generate("see", **{**slow, "timeout_ms": 50})
    assert late.status != 200
    assert "timeout_ms: the time is up" in late.body["error"]
    red = {"text_input": "What colour is it?", "image": base64_text(png()), "max_tokens": 1}
    assert triton.generate("see", **red).status == 200


@pytest.mark.threat("media-bombs")
@pytest.mark.parametrize(
    "file, said",
    [
        (bombs.tiff_of_tile(26_000), "got a TIFF image in tiles of 26000 x 26000 pixels"),
        (bombs.tiff_of_shared_bytes(2000, 2**20), ""),
    ],
    ids=lambda value: value[:25] if isinstance(value, str) else "",
)
def test_small_images_that_would_be_huge_are_refused(
    triton: Triton, file: bytes, said: str
) -> None:
    body = {"text_input": "What colour is it?", "image": base64_text(file), "max_tokens": 1}
    answer = triton.generate("see", **body)
    assert answer.status == (400 if said else 200)
    assert answer.body.get("error", "image[0]: ").startswith(f"image[0]: {said}")
