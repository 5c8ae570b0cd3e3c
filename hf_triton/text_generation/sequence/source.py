"""Input of an encoder for a sequence: images, sounds, or the text of an encoder-decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hf_triton.runtime.devices.device import to_device


@dataclass(frozen=True, eq=False)
class Source:
    """``inputs`` are arguments of the model's forward beside its tokens, tensors on the CPU
    such as pixel_values or input_features. The encoder computes ``num_tokens``. ``digests`` are
    hashes of the contents, one for each image or sound in the order of the prompt.
    ``cache_token_ids`` are the prompt's tokens with a content's own number below 0 wherever its
    features go: prompts that are equal in them share keys and values. Without them none are shared.
    """

    inputs: dict[str, Any]
    num_tokens: int
    digests: tuple[bytes, ...] = ()
    cache_token_ids: list[int] | None = None
    own_key: object = field(default_factory=object)  # equal to no other

    @property
    def num_bytes(self) -> int:
        return sum(getattr(value, "nbytes", 0) for value in self.inputs.values())

    def on(self, device: Any, dtype: Any) -> dict[str, Any]:
        """The inputs on a device, tensors of floating point in the model's dtype."""
        return {
            name: to_device(value.to(dtype) if value.is_floating_point() else value, device)
            if hasattr(value, "is_floating_point")
            else value
            for name, value in self.inputs.items()
        }


def text_source(token_ids: list[int]) -> Source:
    import torch

    read = torch.tensor([token_ids])
    return Source({"input_ids": read, "attention_mask": torch.ones_like(read)}, len(token_ids))
