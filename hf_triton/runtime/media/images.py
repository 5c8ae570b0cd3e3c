"""Decodes the file of an image to pixels, in a process that can be ended.

The headers are checked before anything is decoded, and of an animation only the first picture is.
The limits of the process bound what no header tells.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import struct
import warnings
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from ..errors import RequestError

# Without EPS, which Pillow renders by running Ghostscript, and without formats whose files are text
# (PPM, XPM). With what they are called in Pillow's modules: to import all takes half a second.
_FORMATS = {name: name.title() for name in ("AVIF", "BMP", "GIF", "JPEG", "PNG", "TIFF")}
_FORMATS["WEBP"] = "WebP"
for _name in _FORMATS.values():
    with contextlib.suppress(ImportError):  # Pillow 11.2 has no AVIF
        importlib.import_module(f"PIL.{_name}ImagePlugin")
# The longer side by the shorter: a processor may make the shorter one some hundred pixels long.
# Qwen2-VL's refuses more too.
_MOST_RATIO = 200
_LARGEST_TILE = 2**24  # pixels
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # TIFF 6.0, section 15
# Each scan of a progressive JPEG takes a nanosecond for each pixel, however empty it is. Encoders
# write some ten.
_MOST_SCANNED, _FEW_SCANS = 2**30, 16
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])", re.DOTALL)  # within and after a scan
_SOS, _EOI, _BARE_MARKERS = 0xDA, 0xD9, (0x01, *range(0xD0, 0xD9))
_PILLOWS_LIMIT = 2**26  # pixels
SIZE = struct.Struct("<II")


def decode_image(most_pixels: bytes, file: bytes) -> bytes:
    """``SIZE`` (width, height) and the RGB pixels of an image, upright as its EXIF data says.
    Raises RequestError: no image, cut short, or larger than the limit; the text has no field.
    """
    limit = float(most_pixels)
    # Half of what Pillow refuses before it opens a file.
    Image.MAX_IMAGE_PIXELS = max(_PILLOWS_LIMIT, int(limit))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's about what it reads all the same
        picture = _opened(file, limit)
        _check_headers(picture, file, limit)
        upright = _loaded(picture)
    return SIZE.pack(*upright.size) + bytes(upright.tobytes())


def _opened(file: bytes, most_pixels: float) -> Any:
    known = sorted(name for name in _FORMATS if name in Image.OPEN)
    try:
        return Image.open(io.BytesIO(file), formats=known)
    except UnidentifiedImageError:
        allowed = ", ".join(known)
        raise RequestError(f"{len(file)} bytes that are not an image; allowed: {allowed}") from None
    except Image.DecompressionBombError:
        raise _too_large("an image of more pixels", most_pixels) from None
    except MemoryError:
        raise
    except Exception as error:
        raise RequestError(f"a damaged image ({type(error).__name__})") from None


def _check_headers(picture: Any, file: bytes, most_pixels: float) -> None:
    width, height = picture.size
    if width * height > most_pixels:
        raise _too_large(f"an image of {width} x {height} pixels", most_pixels)
    if max(width, height) > _MOST_RATIO * min(width, height):
        raise RequestError(
            f"got an image of {width} x {height} pixels, its longer side may be at most "
            f"{_MOST_RATIO} times the shorter"
        )
    if picture.format in ("JPEG", "MPO"):
        _check_scans(file, width * height)
    elif picture.format == "TIFF":
        _check_tile(picture.tag_v2)


def _too_large(got: str, most_pixels: float) -> RequestError:
    allowed = f"at most {most_pixels / 1e6:g} megapixels (max_image_megapixels)"
    return RequestError(f"got {got}, {allowed}")


def _check_scans(file: bytes, num_pixels: int) -> None:
    """Counts how often a decoder goes over the picture: SOS markers of ITU-T T.81, B.1.1."""
    found, at = 0, 0
    while marker := _MARKER.search(file, at):
        kind, at = marker[1][0], marker.end()
        if kind == _EOI:
            break
        found += kind == _SOS
        if kind not in _BARE_MARKERS:
            at += int.from_bytes(file[at : at + 2], "big")
    most = max(_FEW_SCANS, _MOST_SCANNED // max(1, num_pixels))
    if found > most:
        raise RequestError(
            f"got a JPEG image of {found} scans, at most {most} of {num_pixels} pixels each"
        )


def _check_tile(tags: Any) -> None:
    width, length = (int(tags.get(tag) or 0) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    if width * length > _LARGEST_TILE:
        raise RequestError(
            f"got a TIFF image in tiles of {width} x {length} pixels, at most "
            f"{_LARGEST_TILE / 1e6:.1f} megapixels"
        )


def _loaded(picture: Any) -> Any:
    try:
        picture.load()
        ImageOps.exif_transpose(picture, in_place=True)
        if picture.mode.startswith("I;16"):  # Pillow cuts off whatever is above 255
            picture = picture.convert("I").point(lambda grey: grey / 257 + 0.5).convert("L")
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    except MemoryError:
        raise
    except Exception as error:
        what = "cut short" if "truncated" in str(error) else f"damaged ({type(error).__name__})"
        raise RequestError(f"the {picture.format} image is {what}") from None
