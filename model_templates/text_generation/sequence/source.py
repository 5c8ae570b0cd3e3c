"""What an encoder reads for a sequence: images, sounds, or the text of an encoder-decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Source:
    """``inputs`` are arguments of the model's forward beside the tokens of the prompt: tensors on
    the CPU as the model's processor makes them, such as pixel_values or input_features.
    ``num_tokens`` is what the encoder computes. ``digests`` are hashes of the contents, one for
    each image or sound in the order of the prompt: equal ones have equal features.
    """

    inputs: dict[str, Any]
    num_tokens: int
    digests: tuple[bytes, ...] = ()
