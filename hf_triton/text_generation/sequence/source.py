"""What an encoder reads for a sequence: images, sounds, or the text of an encoder-decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Source:
    """``inputs`` are arguments of the model's forward beside the tokens of the prompt: tensors on
    the CPU as the model's processor makes them, such as pixel_values or input_features.
    ``num_tokens`` is what the encoder computes. ``digests`` are hashes of the contents, one for
    each image or sound in the order of the prompt: equal ones have equal features.
    ``cache_token_ids`` are the prompt's tokens with a number below 0, one content's alone, wherever
    an image's or a sound's features go: prompts that are equal in them have equal keys and values.
    Without them the keys and values are shared with no other sequence.
    """

    inputs: dict[str, Any]
    num_tokens: int
    digests: tuple[bytes, ...] = ()
    cache_token_ids: list[int] | None = None
    own_key: object = field(default_factory=object)  # equal to no other

    @property
    def num_bytes(self) -> int:
        """What the tensors take in memory."""
        return sum(getattr(value, "nbytes", 0) for value in self.inputs.values())

    def on(self, device: Any, dtype: Any) -> dict[str, Any]:
        """The inputs on a device, tensors of floating point in the model's dtype."""
        return {
            name: value.to(device, dtype if value.is_floating_point() else None)
            if hasattr(value, "is_floating_point")
            else value
            for name, value in self.inputs.items()
        }


def text_source(token_ids: list[int]) -> Source:
    """A text that an encoder reads."""
    import torch

    return Source({"input_ids": torch.tensor([token_ids])}, len(token_ids))
