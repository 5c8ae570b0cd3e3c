"""Decodes the images and sounds of requests, bytes or base64, each in a process that is ended where
it takes too long or too much memory. No path and no address that a request names is ever opened,
neither here nor by transformers, which is given the decoded pixels and samples.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.tracing.trace import timed

from ..errors import RequestError
from ..request.file_threads import DECODING_S, current_reading
from ..sandbox.pool import Sandbox, SandboxEndedError, SandboxError

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]+={0,2}")
_DATA_URL = re.compile(rb"data:[\w.+-]*(?:/[\w.+-]*)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_NOT_OPENED = "send the file's bytes or base64: paths and addresses are not opened"
_HEAD = 256  # bytes
_LEAST_S = 0.01
# The most memory of a process beyond the file.
LEAST_BYTES, BYTES_PER_PIXEL, _BYTES_PER_SAMPLE = 256 * 2**20, 24, 12

Samples = npt.NDArray[np.float32]
sandbox_of = lru_cache(Sandbox)


@dataclass(frozen=True)
class MediaLimits:
    """The largest image, in pixels, and the longest sound, in seconds."""

    image_pixels: float
    audio_s: float


def file_bytes(field: str, value: bytes | str) -> bytes:
    """The file that a value holds: as it is, in base64, or as a data: URL. Raises RequestError."""
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if not raw:
        raise RequestError(f"{field}: empty, {_NOT_OPENED}")
    if not raw[:_HEAD].isascii():
        return raw  # as nearly every file, without a look at all of it
    prefix = _DATA_URL.match(raw)
    packed = b"".join(raw[prefix.end() :].split() if prefix else raw.split())
    if _BASE64.fullmatch(packed):
        with contextlib.suppress(binascii.Error):
            standard = packed.translate(bytes.maketrans(b"-_", b"+/"))
            return base64.b64decode(standard, validate=True)
    if prefix or isinstance(value, str) or (raw.isascii() and raw.decode().isprintable()):
        raise RequestError(f"{field}: got a text that is not base64; {_NOT_OPENED}")
    return raw


def image(field: str, value: bytes | str, limits: MediaLimits) -> Any:
    """A PIL image in RGB, upright as its EXIF data says. Raises RequestError."""
    from PIL import Image

    from .images import SIZE, decode_image

    asked = str(limits.image_pixels).encode()
    most_bytes = int(BYTES_PER_PIXEL * max(0, limits.image_pixels))
    found = _decoded(field, decode_image, asked, value, most_bytes)
    if call := current_reading().call:
        call.tell_use(images=1)
    size = SIZE.unpack_from(found)
    return Image.frombytes("RGB", size, memoryview(found)[SIZE.size :])


def sound(field: str, value: bytes | str, sampling_rate: int, limits: MediaLimits) -> Samples:
    """Samples (num_samples,) float32 of -1 to 1 at ``sampling_rate`` Hz. Raises RequestError."""
    from .sounds import decode_sound

    asked = json.dumps({"sampling_rate": sampling_rate, "most_s": limits.audio_s}).encode()
    most_bytes = int(_BYTES_PER_SAMPLE * sampling_rate * max(0, limits.audio_s))
    found = _decoded(field, decode_sound, asked, value, most_bytes)
    samples = np.frombuffer(found, np.float32).copy()  # which its reader may write to
    if call := current_reading().call:
        call.tell_use(sound_seconds=len(samples) / sampling_rate)
    return samples


def waveform(
    field: str,
    value: Sequence[object] | Samples,
    rate: object,
    sampling_rate: int,
    limits: MediaLimits,
) -> Samples:
    """Samples that came as numbers at ``rate`` Hz, checked and resampled as those of a file."""
    if isinstance(rate, bool) or not isinstance(rate, int) or not 1 <= rate <= 1_000_000:
        raise RequestError(f"{field}: sampling_rate must be an integer of 1 to 1000000")
    try:
        samples = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise RequestError(f"{field}: raw must be a list of numbers") from None
    if samples.ndim != 1 or not np.isfinite(samples).all():
        raise RequestError(f"{field}: raw must be a flat list of finite numbers")
    from .sounds import check_samples, check_sound, resample

    with _named(field):
        check_sound(len(samples), rate, sampling_rate, limits.audio_s)
        check_samples(samples)
    return resample(samples, rate, sampling_rate)


def _decoded(
    field: str,
    decode: Callable[[bytes, bytes], bytes],
    asked: bytes,
    value: bytes | str,
    most_bytes: int,
) -> bytes:
    file = file_bytes(field, value)
    reading, began_s = current_reading(), time.monotonic()
    max_bytes = LEAST_BYTES + most_bytes
    try:
        with _named(field), timed(reading.call and reading.call.trace, "media"):
            return sandbox_of(decode).call(
                *(decode, asked, file),
                time_limit_s=max(_LEAST_S, reading.seconds_left),
                max_bytes=max_bytes,
                has_left=lambda: reading.is_given_up,
            )
    except SandboxError as error:
        if not isinstance(error, SandboxEndedError) and str(error) != MemoryError.__name__:
            raise RequestError(f"{field}: a damaged file ({error})") from None
        raise RequestError(
            f"{field}: decoding it takes too long or too much memory, allowed: {DECODING_S:g} s "
            f"for all files of a request, and {max_bytes // 2**20} MiB"
        ) from None
    finally:
        reading.seconds_left -= time.monotonic() - began_s


@contextlib.contextmanager
def _named(field: str) -> Iterator[None]:
    """Puts the field's name before the text of a RequestError."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{field}: {error}") from None
