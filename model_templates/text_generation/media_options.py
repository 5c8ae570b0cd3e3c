"""The ``options:`` of a model that reads images or sounds with its texts: text-generation's, and
how much of them a prompt may hold.

Standard library only, as options.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .options import Options


@dataclass(frozen=True)
class MediaOptions(Options):
    """How one such model is run. ``None`` means: decided when the model loads."""

    engine: Literal["auto", "in_flight", "generate"] = field(
        default="auto",
        metadata={
            "help": "in_flight: requests join and leave a running batch at every step; generate: "
            "padded batches through model.generate; auto: in_flight where it supports the model, "
            "else generate"
        },
    )
    vllm: dict[str, Any] | None = field(
        default=None, metadata={"help": "none: vLLM reads texts alone here"}
    )
    max_images: int = field(
        default=16,
        metadata={"help": "most images of one prompt", "unit": "images", "min": 0},
    )
    max_sounds: int = field(
        default=16,
        metadata={"help": "most sounds of one prompt", "unit": "sounds", "min": 0},
    )
    max_input_mib: float = field(
        default=32.0,
        metadata={
            "help": "largest files of one prompt, all together as they are sent",
            "unit": "MiB",
            "exclusive_min": 0,
        },
    )
    max_image_megapixels: float = field(
        default=64.0,
        metadata={
            "help": "largest images of one prompt, all together; a small compressed file can be a "
            "huge image",
            "unit": "megapixels",
            "exclusive_min": 0,
        },
    )
    max_audio_s: float = field(
        default=600.0,
        metadata={
            "help": "longest sounds of one prompt, all together",
            "unit": "seconds",
            "exclusive_min": 0,
        },
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that only show in two fields together, each as (field, message)."""
        found = [one for one in super().problems() if one[0] != "vllm"]
        if self.vllm is not None:
            found.append(("vllm", "got arguments for vLLM, which reads texts alone here"))
        return found
