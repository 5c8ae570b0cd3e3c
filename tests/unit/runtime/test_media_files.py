"""Files of images of every mode, and broken ones: pixels, or an error that says what is wrong."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.media.decoding import MediaLimits, image, sound
from tests.support.media_bombs import png_of
from tests.support.media_files import packed, picture, png, sound_file, tone

LIMITS = MediaLimits(0.01e6, 1.0)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")


@pytest.mark.parametrize(
    "mode, file_format",
    [
        *(("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG")),
        *(("CMYK", "JPEG"), ("L", "JPEG"), ("CMYK", "TIFF"), ("P", "GIF"), ("RGBA", "WEBP")),
    ],
)
def test_every_mode_becomes_rgb_as_pillow_converts_it(mode: str, file_format: str) -> None:
    file = packed(picture(size=(20, 20)).convert(mode), file_format)
    found = image("image[0]", file, LIMITS)
    assert (found.mode, found.size) == ("RGB", (20, 20))
    assert found.tobytes() == Image.open(io.BytesIO(file)).convert("RGB").tobytes()


@pytest.mark.parametrize("file_format, kind", [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_sixteen_bits_of_grey_are_scaled_to_eight(file_format: str, kind: str) -> None:
    greys = np.linspace(0, 65535, 400).astype(kind).reshape(20, 20)
    found = np.asarray(image("image[0]", packed(Image.fromarray(greys), file_format), LIMITS))
    eight = np.round(greys.astype(np.float64) / 257)
    np.testing.assert_array_equal(found, np.stack([eight] * 3, axis=-1))


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_picture_is_seen(file_format: str) -> None:
    colours = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    file = packed(colours[0], file_format, save_all=True, append_images=colours[1:], duration=50)
    red, _, blue = image("image[0]", file, LIMITS).getpixel((4, 4))
    assert red > 200 > 50 > blue


@pytest.mark.parametrize(
    "file, said",
    [
        (png_of(1000, 1000), "got an image of 1000 x 1000 pixels, at most 0.01 megapixels"),
        (png_of(60_000, 60_000), "got an image of more pixels, at most 0.01 megapixels"),
        (png_of(2**31 - 1, 2**31 - 1), "got an image of more pixels, at most 0.01 megapixels"),
        (png_of(90, 90), "the PNG image is "),
        (png(size=(50, 50))[:400], "the PNG image is cut short"),
        (packed(picture(), "JPEG")[:900], "the JPEG image is cut short"),
        (b"GIF89a", "a damaged image|6 bytes that are not an image|got a text that is not base64"),
        (b"\xff\xd8\xff\xe0" + bytes(40), "44 bytes that are not an image|a damaged image"),
    ],
)
def test_what_is_wrong_with_an_image_is_said(file: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=f"^image\\[0\\]: ({said})"):
        image("image[0]", file, LIMITS)


@pytest.mark.parametrize("file_format", ["FLAC", "OGG", "WAV"])
def test_a_sound_that_ends_early_is_none_of_another_kind(file_format: str) -> None:
    whole = sound_file(tone(), file_format=file_format)
    for size in (len(whole) // 2, 40):
        with pytest.raises(RequestError, match=f"^a: the {file_format} file is .*cut short$"):
            sound("a", whole[:size], 16_000, LIMITS)


def broken(file: bytes, draw: random.Random) -> bytes:
    """The file cut, with changed bytes, a part twice, or nothing but its beginning."""
    at, length = draw.randrange(len(file)), draw.randrange(1, 64)
    noise = draw.randbytes(length)
    return draw.choice(
        (
            file[:at],
            file[:at] + noise + file[at + length :],
            file[:at] + file[max(0, at - length) :],
            file[: draw.randrange(1, 64)] + noise,
            bytes(byte ^ (draw.random() < 0.01) for byte in file),
        )
    )


def outcome(read: Callable[[], Any]) -> Any:
    """The value read, or the text of a caller's error; any other error fails the test."""
    try:
        return read()
    except RequestError as error:
        return str(error)


def broken_files(whole: bytes, name: str, read: Callable[[bytes], Any]) -> list[Any]:
    """Reads a hundred broken files, of which some must give errors that name them."""
    draw = random.Random(17)
    found = [outcome(partial(read, broken(whole, draw))) for _ in range(100)]
    texts = [one for one in found if isinstance(one, str)]
    assert texts
    assert all(text.startswith(f"{name}: ") for text in texts)
    return [one for one in found if not isinstance(one, str)]


@pytest.mark.filterwarnings("ignore")  # Pillow's about what it reads all the same
@pytest.mark.parametrize("file_format", FORMATS)
def test_a_broken_image_is_pixels_or_an_error_of_its_own(file_format: str) -> None:
    whole = packed(picture(size=(32, 32)), file_format)
    pictures = broken_files(whole, "image[3]", lambda file: image("image[3]", file, LIMITS))
    assert all(one.mode == "RGB" and one.width * one.height <= 10_000 for one in pictures)


@pytest.mark.parametrize("file_format", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_broken_sound_is_samples_or_an_error_of_its_own(file_format: str) -> None:
    whole = sound_file(tone(0.2), file_format=file_format)
    sounds = broken_files(whole, "audio[3]", lambda file: sound("audio[3]", file, 16_000, LIMITS))
    assert all(0 < len(one) <= 16_000 and one.dtype == np.float32 for one in sounds)
