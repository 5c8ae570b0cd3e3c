"""A sound's tensors, in the forms in which audio-text models take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

_MASKS = ("feature_attention_mask", "input_features_mask")
_SAMPLES_PER_FEATURE = 3200  # of a convolution over samples


def sound_forms(model: Any) -> Iterator[Callable[[Any, torch.Generator, int], dict[str, Any]]]:
    """The forms that the model's arguments allow."""
    accepted = inspect.signature(model.forward).parameters
    if "input_values" in accepted:
        yield _samples
    if "input_features" in accepted:
        yield _spectrum
        yield _whole_spectrum
        yield _frames


def _samples(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    length = (3 + 2 * size) * _SAMPLES_PER_FEATURE
    return {
        "input_values": torch.randn(1, 1, length, generator=draw),
        "padding_mask": torch.ones(1, length, dtype=torch.bool),
        "sample": False,
    }


def _spectrum(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """Mel frames (1, bins, frames) as Whisper's, of which a mask names those of the sound."""
    return _masked(model, draw, 200 if size else 100, _num_frames(model))


def _whole_spectrum(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """The same of as many frames as the sound has."""
    num_frames = 200 if size else 100
    return _masked(model, draw, num_frames, num_frames)


def _frames(model: Any, draw: torch.Generator, size: int) -> dict[str, Any]:
    """As Granite Speech's: (1, frames, size of a frame)."""
    dim = model.config.encoder_config.input_dim
    return {"input_features": torch.randn(1, 60 if size else 30, dim, generator=draw)}


def _masked(model: Any, draw: torch.Generator, num_own: int, num_frames: int) -> dict[str, Any]:
    bins = model.config.audio_config.num_mel_bins
    accepted = inspect.signature(model.forward).parameters
    mask = (torch.arange(num_frames) < num_own).to(torch.int64)[None]
    return {
        "input_features": torch.randn(1, bins, num_frames, generator=draw),
        **{name: mask for name in _MASKS if name in accepted},
    }


def _num_frames(model: Any) -> int:
    config = model.config.audio_config
    positions = getattr(config, "max_source_positions", None)
    return int(2 * (positions or config.max_position_embeddings))
