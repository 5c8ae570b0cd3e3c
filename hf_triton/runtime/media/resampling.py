"""Changes the sampling rate of a sound, with numpy alone.

Band-limited interpolation: every output sample is the input under a sinc that a Hann window ends,
its cutoff just below the lower of the two Nyquist frequencies. The kernels and their parameters are
those of torchaudio.functional.resample, which transformers' pipelines would use; see
https://ccrma.stanford.edu/~jos/resample/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

from ..errors import RequestError

_NUM_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_BLOCK_VALUES = 2**22  # 16 MiB
_MOST_PHASES = 2_000_000
_HIGHEST_RATE = 1_000_000  # Hz

Samples = npt.NDArray[np.float32]


def resample(samples: Samples, rate: int, new_rate: int) -> Samples:
    """(num_samples,) at ``rate`` Hz -> (ceil(num_samples * new_rate / rate),) at ``new_rate``."""
    if rate == new_rate:
        return samples
    return np.concatenate(list(resampled([samples], len(samples), rate, new_rate)))


def resampled(
    blocks: Iterable[Samples], num_samples: int, rate: int, new_rate: int
) -> Iterator[Samples]:
    """Resamples blocks that come one after another, of ``num_samples`` together."""
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
        for part in _parts(windows):
            found = (part @ kernels.T).reshape(-1)[:num_left]
            num_left -= len(found)
            yield found
        held = held[len(windows) * old :]


def check_rates(rate: int, new_rate: int) -> None:
    """Raises RequestError for rates that have too little in common: 44101 to 16000 Hz would take a
    kernel of 3 GB.
    """
    divisor = gcd(rate, new_rate)
    if rate > _HIGHEST_RATE or (rate // divisor) * (new_rate // divisor) > _MOST_PHASES:
        raise RequestError(f"got {rate} Hz, send {new_rate} Hz, which the model takes")


def _parts(windows: Samples) -> Iterator[Samples]:
    length = max(1, _BLOCK_VALUES // windows.shape[1])
    return (windows[start : start + length] for start in range(0, len(windows), length))


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
