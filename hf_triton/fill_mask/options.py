"""The ``options:`` of a fill-mask model."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.option import above_limit, option


@dataclass(frozen=True)
class Options(EncoderOptions):
    OUTPUT, TASK = "tokens", "filling:FillMask"

    top_k: int = option(
        5,
        "predictions for each mask, best first, where a request does not set top_k",
        unit="predictions",
        least=1,
    )
    max_top_k: int = option(
        100, "highest top_k that a request may set", unit="predictions", least=1
    )
    max_num_masks: int = option(
        64,
        "most masks in one text; each takes one logit per token of the vocabulary",
        unit="masks",
        least=1,
    )

    def problems(self) -> list[tuple[str, str]]:
        return super().problems() + above_limit(self, "top_k", "max_top_k")
