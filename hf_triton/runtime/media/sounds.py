"""Decodes the file of a sound to samples, in a process that can be ended; resamples with numpy.

The header is checked before anything is decoded. Then the file is read in blocks, each of which is
mixed and brought to the model's sampling rate, so that no more is held than what comes out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from math import ceil, gcd

import numpy as np
import numpy.typing as npt
import soundfile

from ..errors import RequestError

_FORMATS = {"WAV": "WAV", "WAVEX": "WAV", "FLAC": "FLAC", "OGG": "OGG", "MP3": "MP3"}
_BEGINNINGS = {b"fLaC": "FLAC", b"OggS": "OGG"}  # of files; WAV has its name behind their size
_MOST_VALUES = 2**28  # samples of all channels
# Some send 16, 24 or 32 bits of integers as floats. What is larger overflows in a model.
_LARGEST_SAMPLE = 2.0**31
_BLOCK_VALUES = 2**18
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # of a RIFF file that was written to a pipe
_UNKNOWN_FRAMES = 2**36 - 1  # of a FLAC file: the most that its header can say
_NUM_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_PRODUCT_VALUES = 2**22  # 16 MiB
_MOST_PHASES = 2_000_000
_HIGHEST_RATE = 1_000_000  # Hz

Samples = npt.NDArray[np.float32]


def decode_sound(asked: bytes, file: bytes) -> bytes:
    """Samples (num_samples,) float32 of -1 to 1, one channel. ``asked`` is a JSON object:
    ``sampling_rate`` in Hz, and ``most_s``, the longest sound in seconds. Raises RequestError: no
    sound, cut short, or longer than the limit; the text has no field.
    """
    wanted = json.loads(asked)
    try:
        with soundfile.SoundFile(io.BytesIO(file)) as opened:
            _check_header(opened, file, wanted["sampling_rate"], wanted["most_s"])
            blocks = resampled(
                _mixed(opened), opened.frames, opened.samplerate, wanted["sampling_rate"]
            )
            return b"".join(block.tobytes() for block in blocks)
    except soundfile.LibsndfileError:
        raise _no_sound(file) from None


def _check_header(opened: soundfile.SoundFile, file: bytes, new_rate: int, most_s: float) -> None:
    rate, num_channels = opened.samplerate, opened.channels
    if opened.format not in _FORMATS:
        raise _no_sound(file)
    if opened.format == "FLAC" and opened.frames >= _UNKNOWN_FRAMES:
        raise RequestError("the FLAC file does not say how long it is")
    check_sound(opened.frames, rate, new_rate, most_s)
    if opened.frames * num_channels > _MOST_VALUES:
        raise RequestError(
            f"got {opened.frames} samples of each of {num_channels} channels, at most "
            f"{_MOST_VALUES} together"
        )
    if _is_cut_short(file):
        raise _cut_short(opened)


def check_sound(num_samples: int, rate: int, new_rate: int, most_s: float) -> None:
    """Raises RequestError for a sound that is too long, or of which nothing can be made."""
    if num_samples / rate > most_s:
        raise RequestError(
            f"got a sound of {num_samples / rate:.1f} s, at most {most_s:g} s (max_audio_s)"
        )
    if not num_samples:
        raise RequestError("the sound has no samples")
    divisor = gcd(rate, new_rate)  # 44101 to 16000 Hz would take a kernel of 3 GB
    if rate > _HIGHEST_RATE or (rate // divisor) * (new_rate // divisor) > _MOST_PHASES:
        raise RequestError(f"got {rate} Hz, send {new_rate} Hz, which the model takes")


def check_samples(samples: Samples) -> None:
    """Raises RequestError for a sample that is larger than any file has."""
    largest = max(float(samples.max()), -float(samples.min()))
    if largest > _LARGEST_SAMPLE:
        raise RequestError(f"got a sample of {largest:g}, allowed: -1 to 1, or integers of 32 bits")


def _mixed(opened: soundfile.SoundFile) -> Iterator[Samples]:
    """Mixes all channels into one, block by block."""
    num_left = opened.frames
    while num_left:
        length = min(num_left, max(1, _BLOCK_VALUES // opened.channels))
        block = opened.read(length, dtype="float32", always_2d=True)
        if len(block) < length:
            raise _cut_short(opened)
        if not np.isfinite(block).all():
            kind = _FORMATS[opened.format]
            raise RequestError(f"the {kind} file has samples that are not numbers")
        check_samples(block)
        num_left -= length
        yield block.mean(axis=1)


def _is_cut_short(file: bytes) -> bool:
    """A RIFF file (WAV) says its length; libsndfile takes what is there."""
    if file[:4] != b"RIFF":
        return False
    size = int.from_bytes(file[4:8], "little")
    return size not in _UNKNOWN_SIZES and size + 8 > len(file) + 1  # a pad byte may be missing


def _cut_short(opened: soundfile.SoundFile) -> RequestError:
    return RequestError(f"the {_FORMATS[opened.format]} file is cut short")


def _no_sound(file: bytes) -> RequestError:
    kind = "WAV" if file[8:12] == b"WAVE" else _BEGINNINGS.get(file[:4])
    if kind:
        return RequestError(f"the {kind} file is damaged or cut short")
    allowed = ", ".join(dict.fromkeys(_FORMATS.values()))
    return RequestError(f"{len(file)} bytes that are not a sound; allowed: {allowed}")


def resample(samples: Samples, rate: int, new_rate: int) -> Samples:
    """(num_samples,) at ``rate`` Hz -> (ceil(num_samples * new_rate / rate),) at ``new_rate``."""
    return np.concatenate(list(resampled([samples], len(samples), rate, new_rate)))


def resampled(
    blocks: Iterable[Samples], num_samples: int, rate: int, new_rate: int
) -> Iterator[Samples]:
    """Resamples blocks that come one after another, of ``num_samples`` together.

    Band-limited interpolation: every output sample is the input under a sinc that a Hann window
    ends, its cutoff just below the lower of the two Nyquist frequencies. The kernels and their
    parameters are those of torchaudio.functional.resample, which transformers' pipelines would use;
    see https://ccrma.stanford.edu/~jos/resample/.
    """
    if rate == new_rate:
        yield from blocks
        return
    divisor = gcd(rate, new_rate)
    old, new = rate // divisor, new_rate // divisor
    kernels, width = _kernels(old, new)  # (new, 2 * width + old)
    num_left = ceil(num_samples * new / old)
    held = np.zeros(width, np.float32)
    for block in chain(blocks, [np.zeros(width + old, np.float32)]):
        held = np.concatenate((held, block))
        if len(held) < kernels.shape[1]:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(held, kernels.shape[1])[::old]
        # In blocks: a product of overlapping windows begins with a copy of them.
        length = max(1, _PRODUCT_VALUES // windows.shape[1])
        for start in range(0, len(windows), length):
            found = (windows[start : start + length] @ kernels.T).reshape(-1)[:num_left]
            num_left -= len(found)
            yield found
        held = held[len(windows) * old :]


@lru_cache(maxsize=8)
def _kernels(old: int, new: int) -> tuple[Samples, int]:
    """A kernel for each of the ``new`` output samples that ``old`` input samples become."""
    cutoff = min(old, new) * _ROLLOFF
    width = ceil(_NUM_ZERO_CROSSINGS * old / cutoff)
    positions = np.arange(-width, width + old, dtype=np.float64)[None, :] / old
    phases = -np.arange(new, dtype=np.float64)[:, None] / new
    times = np.clip((phases + positions) * cutoff, -_NUM_ZERO_CROSSINGS, _NUM_ZERO_CROSSINGS)
    window = np.cos(times * np.pi / _NUM_ZERO_CROSSINGS / 2) ** 2
    return (np.sinc(times) * window * cutoff / old).astype(np.float32), width
