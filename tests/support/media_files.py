"""Small images and sounds as files."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
from PIL import Image

Samples = npt.NDArray[np.float32]


def picture(seed: int = 0, size: tuple[int, int] = (40, 50)) -> Any:
    """A PIL image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(seed: int = 0, size: tuple[int, int] = (40, 50)) -> bytes:
    packed = io.BytesIO()
    picture(seed, size).save(packed, format="PNG")
    return packed.getvalue()


def tone(seconds: float = 0.5, rate: int = 16_000, hertz: float = 440.0) -> Samples:
    times = np.arange(int(seconds * rate)) / rate
    samples: Samples = (0.5 * np.sin(2 * np.pi * hertz * times)).astype(np.float32)
    return samples


def sound_file(samples: Samples, rate: int = 16_000, file_format: str = "WAV") -> bytes:
    packed = io.BytesIO()
    subtype = "FLOAT" if file_format == "WAV" else None
    soundfile.write(packed, samples, rate, format=file_format, subtype=subtype)
    return packed.getvalue()


# WAV files of next to no samples.
FEW_SAMPLES = tuple(
    sound_file(tone(1.0)[:num_samples], rate)
    for num_samples, rate in ((0, 1), (1, 16_000), (1, 1), (1, 48_000), (9, 8_000), (100, 16_000))
)


def base64_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def packed(one: Any, file_format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    one.save(file, format=file_format, **options)
    return file.getvalue()
