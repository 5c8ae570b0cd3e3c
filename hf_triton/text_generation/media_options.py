"""The ``options:`` of a model that reads images or sounds with its texts: text-generation's, and
how much of them a prompt may hold.

Standard library only, as options.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hf_triton.runtime.option import option

from .options import Options


@dataclass(frozen=True)
class MediaOptions(Options):
    """How one such model is run. ``None`` means: decided when the model loads."""

    engine: Literal["auto", "in_flight", "generate"] = option(
        "auto",
        "in_flight: requests join and leave a running batch at every step; generate: "
        "padded batches through model.generate; auto: in_flight where it supports the model, "
        "else generate",
    )
    vllm: dict[str, Any] | None = option(  # noqa: RUF009
        None, "none: vLLM reads texts alone here"
    )
    max_images: int = option(16, "most images of one prompt", unit="images", least=0)
    max_sounds: int = option(16, "most sounds of one prompt", unit="sounds", least=0)
    max_input_mib: float = option(
        32.0, "largest files of one prompt, all together as they are sent", unit="MiB", above=0
    )
    max_image_megapixels: float = option(
        64.0,
        "largest images of one prompt, all together; a small compressed file can be a huge image",
        unit="megapixels",
        above=0,
    )
    max_audio_s: float = option(
        600.0, "longest sounds of one prompt, all together", unit="seconds", above=0
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that only show in two fields together, each as (field, message)."""
        found = [one for one in super().problems() if one[0] != "vllm"]
        if self.vllm is not None:
            found.append(("vllm", "got arguments for vLLM, which reads texts alone here"))
        return found
