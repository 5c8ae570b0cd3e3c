"""Changes the sampling rate of a sound, with numpy alone.

Band-limited interpolation: every output sample is the input under a sinc that a Hann window ends,
its cutoff just below the lower of the two Nyquist frequencies. The kernels and their parameters are
those of torchaudio.functional.resample, which transformers' pipelines would use; see
https://ccrma.stanford.edu/~jos/resample/.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

_NUM_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_BLOCK = 4096
_MOST_PHASES = 2_000_000

Samples = npt.NDArray[np.float32]


def resample(samples: Samples, rate: int, new_rate: int) -> Samples:
    """(num_samples,) at ``rate`` Hz -> (ceil(num_samples * new_rate / rate),) at ``new_rate``."""
    if rate == new_rate:
        return samples
    divisor = gcd(rate, new_rate)
    old, new = rate // divisor, new_rate // divisor
    kernels, width = _kernels(old, new)  # (new, 2 * width + old)
    padded = np.pad(samples, (width, width + old))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[1])[::old]
    # In blocks: a product of overlapping windows begins with a copy of them.
    blocks = [
        (windows[start : start + _BLOCK] @ kernels.T).reshape(-1)
        for start in range(0, len(windows), _BLOCK)
    ]
    found: Samples = np.concatenate(blocks)[: ceil(len(samples) * new / old)]
    return found


def can_resample(rate: int, new_rate: int) -> bool:
    """Whether the rates have enough in common: 44101 to 16000 Hz would take a kernel of 3 GB."""
    divisor = gcd(rate, new_rate)
    return (rate // divisor) * (new_rate // divisor) <= _MOST_PHASES


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
