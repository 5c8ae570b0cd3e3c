"""Decodes the images and sounds of requests: bytes or base64 in, pixels or samples out.

No path and no address that a request names is ever opened, neither here nor by transformers, which
is given the decoded pixels and samples.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RequestError
from .resampling import can_resample, resample

# Without EPS, which Pillow renders by running Ghostscript, and without formats whose files are text
# (PPM, XPM).
_IMAGE_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "TIFF", "WEBP")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_DATA_URL = re.compile(rb"data:[\w.+-]*(?:/[\w.+-]*)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_NOT_OPENED = "send the file's bytes or base64: paths and addresses are not opened"
_HEAD = 256  # bytes
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # of a RIFF file that was written to a pipe

_MOST_VALUES = 2**28  # samples of all channels: 1 GiB
# Some send 16, 24 or 32 bits of integers as floats. What is larger overflows in a model.
_LARGEST_SAMPLE = 2.0**31

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class MediaLimits:
    """The largest image, in pixels, and the longest sound, in seconds."""

    image_pixels: float
    audio_s: float


def file_bytes(field: str, value: bytes | str) -> bytes:
    """The file that a value holds: as it is, in base64, or as a data: URL.

    Raises:
        RequestError: empty, or a text that is none of these.
    """
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if not raw:
        raise RequestError(f"{field}: empty, {_NOT_OPENED}")
    if not raw[:_HEAD].isascii():
        return raw  # as nearly every file, without a look at all of it
    prefix = _DATA_URL.match(raw)
    packed = b"".join(raw[prefix.end() :].split() if prefix else raw.split())
    if _BASE64.fullmatch(packed):
        try:
            standard = packed.translate(bytes.maketrans(b"-_", b"+/"))
            return base64.b64decode(standard, validate=True)
        except binascii.Error:
            pass
    if prefix or isinstance(value, str) or (raw.isascii() and raw.decode().isprintable()):
        raise RequestError(f"{field}: got a text that is not base64; {_NOT_OPENED}")
    return raw


def image(field: str, value: bytes | str, limits: MediaLimits) -> Any:
    """A PIL image in RGB, upright as its EXIF data says.

    Raises:
        RequestError: no image, cut short, or larger than the limit.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    encoded = file_bytes(field, value)
    Image.init()
    known = [name for name in _IMAGE_FORMATS if name in Image.OPEN]
    try:
        picture = Image.open(io.BytesIO(encoded), formats=known)
    except UnidentifiedImageError:
        allowed = ", ".join(known)
        raise RequestError(f"{field}: {_no_file('image', encoded)}; allowed: {allowed}") from None
    except Exception as error:
        if isinstance(error, Image.DecompressionBombError):
            raise _too_large(field, "an image of more pixels", limits) from None
        raise RequestError(f"{field}: a damaged image ({type(error).__name__})") from None
    width, height = picture.size
    if width * height > limits.image_pixels:
        raise _too_large(field, f"an image of {width} x {height} pixels", limits)
    try:
        picture.load()
        return ImageOps.exif_transpose(picture).convert("RGB")
    except Exception as error:
        what = "cut short" if "truncated" in str(error) else f"damaged ({type(error).__name__})"
        raise RequestError(f"{field}: the {picture.format} image is {what}") from None


def _too_large(field: str, got: str, limits: MediaLimits) -> RequestError:
    allowed = f"at most {limits.image_pixels / 1e6:g} megapixels (max_image_megapixels)"
    return RequestError(f"{field}: got {got}, {allowed}")


def sound(field: str, value: bytes | str, sampling_rate: int, limits: MediaLimits) -> Samples:
    """Samples (num_samples,) float32 of -1 to 1, one channel, at ``sampling_rate`` Hz.

    Raises:
        RequestError: no sound, cut short, empty, or longer than the limit.
    """
    import soundfile

    encoded = file_bytes(field, value)
    try:
        with soundfile.SoundFile(io.BytesIO(encoded)) as file:
            num_frames, rate, format_name = file.frames, file.samplerate, file.format
            _check_seconds(field, num_frames / rate, limits)
            if num_frames * file.channels > _MOST_VALUES:
                raise RequestError(f"{field}: got {file.channels} channels at {rate} Hz, too much")
            samples = file.read(dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:
        allowed = "WAV, FLAC, OGG, MP3"
        raise RequestError(f"{field}: {_no_file('sound', encoded)}; allowed: {allowed}") from None
    if len(samples) < num_frames or _is_cut_short(encoded):
        raise RequestError(f"{field}: the {format_name} file is cut short")
    if not np.isfinite(samples).all():
        raise RequestError(f"{field}: the {format_name} file has samples that are no numbers")
    return _at_rate(field, samples.mean(axis=1), rate, sampling_rate, limits)


def waveform(
    field: str,
    value: Sequence[object] | Samples,
    rate: object,
    sampling_rate: int,
    limits: MediaLimits,
) -> Samples:
    """The same of samples that came as numbers at ``rate`` Hz."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= 1_000_000:
        raise RequestError(f"{field}: sampling_rate must be an integer of 1 to 1000000")
    try:
        samples = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise RequestError(f"{field}: raw must be a list of numbers") from None
    if samples.ndim != 1 or not np.isfinite(samples).all():
        raise RequestError(f"{field}: raw must be a flat list of finite numbers")
    return _at_rate(field, samples, rate, sampling_rate, limits)


def _at_rate(
    field: str, samples: Samples, rate: int, sampling_rate: int, limits: MediaLimits
) -> Samples:
    _check_seconds(field, len(samples) / rate, limits)
    if not len(samples):
        raise RequestError(f"{field}: the sound has no samples")
    largest = max(float(samples.max()), -float(samples.min()))
    if largest > _LARGEST_SAMPLE:
        raise RequestError(
            f"{field}: got a sample of {largest:g}, allowed: -1 to 1, or integers of 32 bits"
        )
    if not can_resample(rate, sampling_rate):
        raise RequestError(
            f"{field}: got {rate} Hz, send {sampling_rate} Hz, which the model takes"
        )
    return resample(samples, rate, sampling_rate)


def _check_seconds(field: str, seconds: float, limits: MediaLimits) -> None:
    if seconds > limits.audio_s:
        raise RequestError(
            f"{field}: got a sound of {seconds:.1f} s, at most {limits.audio_s:g} s (max_audio_s)"
        )


def _is_cut_short(encoded: bytes) -> bool:
    """A RIFF file (WAV) says its length; libsndfile takes what is there."""
    if encoded[:4] != b"RIFF":
        return False
    size = int.from_bytes(encoded[4:8], "little")
    return size not in _UNKNOWN_SIZES and size + 8 > len(encoded) + 1  # a pad byte may be missing


def _no_file(what: str, encoded: bytes) -> str:
    return f"{len(encoded)} bytes that are no {what}"
