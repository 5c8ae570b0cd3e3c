"""Small files that would take much time or memory: refused by their headers, or given up."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from PIL import Image

from hf_triton.runtime.errors import CancelledError, RequestError
from hf_triton.runtime.media import decoding
from hf_triton.runtime.media.decoding import MediaLimits, image, sound
from hf_triton.runtime.media.sounds import decode_sound
from hf_triton.runtime.request import file_threads
from hf_triton.runtime.request.file_threads import Reading
from tests.support import media_bombs as bombs
from tests.support.media_files import packed, picture, sound_file, tone

LIMITS = MediaLimits(64e6, 600.0)
LARGE = "pixels, at most 64 megapixels (max_image_megapixels)"


@pytest.mark.threat("media-bombs")
@pytest.mark.parametrize(
    "file, said",
    [
        (
            bombs.jpeg_of_scans(2000, 1024),
            "got a JPEG image of 2000 scans, at most 1024 of 1048576 pixels each",
        ),
        (bombs.jpeg_of_scans(17, 8000), "got a JPEG image of 17 scans, at most 16 of 64000000"),
        (
            bombs.tiff_of_tile(26_000),
            "got a TIFF image in tiles of 26000 x 26000 pixels, at most 16.8 megapixels",
        ),
        (
            bombs.png_of(60_000_000, 1),
            "got an image of 60000000 x 1 pixels, its longer side may be at most 200 times the",
        ),
        (bombs.png_of(1, 201), "got an image of 1 x 201 pixels, its longer side may be at most"),
        (bombs.png_with_text(2 * 2**20), "a damaged image (ValueError)"),
        (packed(picture(), "JPEG2000"), "7025 bytes that are not an image; allowed: AVIF, BMP"),
        (bombs.gif_of_frame(9000, 9000), f"got an image of 9000 x 9000 {LARGE}"),
        (bombs.gif_of_frame(65_535, 65_535), "got an image of more pixels, at most 64 megapix"),
        (bombs.webp_of_frame(9000, 9000), "got an image of 9000 x 9000"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_image_that_takes_much_is_refused_by_its_headers(file: bytes, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        image("image[0]", file, LIMITS)
    assert str(refused.value).startswith(f"image[0]: {said}")


@pytest.mark.threat("media-bombs")
@pytest.mark.parametrize(
    "file",
    [
        bombs.jpeg_of_scans(100, 256),
        packed(picture(size=(300, 300)), "JPEG", progressive=True, exif=b"Exif\0\0\xff\xda" * 50),
        packed(picture(), "JPEG") + b"\xff\xda" * 50_000,  # as phones put a film behind a picture
        packed(picture(), "TIFF", compression="tiff_adobe_deflate"),
        bombs.tiff_of_tile(256, bytes(256 * 256)),
        packed(Image.new("RGB", (200, 1)), "PNG"),
    ],
    ids=["scans", "EXIF", "film", "TIFF", "a tile", "long"],
)
def test_images_as_programs_write_them_are_read(file: bytes) -> None:
    with Image.open(io.BytesIO(file)) as expected:
        assert image("image", file, LIMITS).tobytes() == expected.convert("RGB").tobytes()


@pytest.mark.threat("media-bombs")
@pytest.mark.parametrize(
    "file, said",
    [
        (
            bombs.sound_of(2**20, 655_350, 8),
            "got 655350 Hz, send 16000 Hz, which the model takes",
        ),
        (
            bombs.flac_of(2**25 + 1, 64_000, 8),
            "got 33554433 samples of each of 8 channels, at most 268435456 together",
        ),
        (bombs.sound_of(2**20, 1000, 8), "got a sound of 1048.6 s, at most 600 s (max_audio_s)"),
        (bombs.flac_of(0), "the FLAC file does not say how long it is"),
        (bombs.sound_of(16_000, 16_000, 1, "AIFF"), "32054 bytes that are not a sound; allowed:"),
        (bombs.sound_of(16_000, 16_000, 1, "CAF"), "36096 bytes that are not a sound; allowed:"),
        (bombs.sound_of(0, 16_000, 1, "WAV"), "the sound has no samples"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_sound_that_takes_much_is_refused_by_its_header(file: bytes, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        sound("audio", file, 16_000, LIMITS)
    assert str(refused.value).startswith(f"audio: {said}")


@pytest.mark.parametrize(
    "file_format, kind",
    [
        *(("WAV", kind) for kind in ("PCM_U8", "PCM_24", "DOUBLE", "ULAW", "IMA_ADPCM", "GSM610")),
        *(("WAVEX", "FLOAT"), ("FLAC", "PCM_24"), ("OGG", "OPUS"), ("OGG", "VORBIS")),
    ],
)
def test_every_kind_of_a_sounds_file_is_read(file_format: str, kind: str) -> None:
    found = sound("audio", bombs.sound_of(16_000, 16_000, 1, file_format, kind), 16_000, LIMITS)
    assert 16_000 <= len(found) < 16_400  # some have blocks of a fixed length
    assert abs(found).max() < 0.01


def test_a_tag_of_many_megabytes_before_a_sound_is_passed_over() -> None:
    tag = b"ID3\x04\0\0\0\x7f\x7f\x7f" + bytes(2**21 - 1)
    whole = sound_file(tone(), file_format="MP3")
    assert abs(len(sound("audio", tag + whole, 16_000, LIMITS)) - 8000) < 2500


@pytest.mark.threat("media-bombs")
def test_a_sound_takes_as_much_memory_as_its_samples_in_the_end() -> None:
    file = bombs.sound_of(2_000_000, 48_000, 8)  # 64 MB of samples
    tracemalloc.start()
    found = decode_sound(b'{"sampling_rate": 16000, "most_s": 600}', file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 2_666_668
    assert peak < 40_000_000


@pytest.fixture
def reading() -> Iterator[Reading]:
    reading = Reading()
    token = file_threads.current.set(reading)
    yield reading
    file_threads.current.reset(token)


def test_images_and_seconds_of_sound_are_told_as_they_are_decoded(reading: Reading) -> None:
    used: list[dict[str, float]] = []
    reading.call = SimpleNamespace(  # type: ignore[assignment]
        tell_use=lambda **told: used.append(told), trace=None
    )
    image("image", packed(picture(), "PNG"), LIMITS)
    sound("audio", sound_file(tone()), 16_000, LIMITS)
    with pytest.raises(RequestError):
        image("image", b"\xffno image", LIMITS)
    assert used == [{"images": 1}, {"sound_seconds": 0.5}]


SLOW = bombs.jpeg_of_scans(256)  # half a second


@pytest.mark.threat("media-bombs")
def test_what_takes_longer_than_a_requests_files_may_is_given_up(reading: Reading) -> None:
    reading.seconds_left = 0.05
    with pytest.raises(RequestError, match=r"^image: decoding it takes too long .* 30 s for all"):
        image("image", SLOW, LIMITS)
    with pytest.raises(RequestError, match=r"^image: decoding it takes too long"):
        image("image", SLOW, LIMITS)  # the next file has no time left
    reading.seconds_left = 30.0
    assert image("image", packed(picture(), "PNG"), LIMITS).size == (50, 40)
    assert reading.seconds_left < 30.0


@pytest.mark.threat("media-bombs")
def test_what_takes_more_memory_than_it_may_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LEAST_BYTES", 2**20)
    monkeypatch.setattr(decoding, "BYTES_PER_PIXEL", 1)
    file = packed(Image.new("L", (7000, 7000)), "PNG")
    with pytest.raises(RequestError, match=r"^image: decoding it takes .* and 62 MiB$"):
        image("image", file, LIMITS)


@pytest.mark.threat("slow-media")
def test_what_nobody_waits_for_is_not_decoded_to_its_end(reading: Reading) -> None:
    reading.is_given_up = True
    with pytest.raises(CancelledError):
        image("image", SLOW, LIMITS)
