"""The ``options:`` of a token-classification model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options(EncoderOptions):
    OUTPUT, TASK = "tokens", "tagging:TokenClassification"

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] = option(
        "simple",
        "how tokens are grouped to entities, as in transformers; none: each token by "
        "itself; simple: neighbouring tokens of one label; first, average, max: whole words",
    )
    ignore_labels: str = option(
        "O", "labels that are left out of the answer, with commas between them"
    )
    stride: int | None = option(
        None,
        "a longer text is computed in windows of max_length that overlap by so many "
        "tokens; default: it is refused, or cut by truncation",
        unit="tokens",
        least=0,
    )
    max_num_windows: int = option(
        256, "most windows of one text; a longer one is refused", unit="windows", least=1
    )

    def problems(self) -> list[tuple[str, str]]:
        found = super().problems()
        if self.stride is None:
            return found
        if self.truncation:
            found.append(("stride", f"got {self.stride}, expected none with truncation: true"))
        if self.aggregation_strategy == "none":
            message = f"got {self.stride}, expected none with aggregation_strategy: none"
            found.append(("stride", f"{message}: tokens alone can't be merged over windows"))
        if self.max_length is not None and self.stride >= self.max_length:
            message = f"got {self.stride}, expected less than max_length ({self.max_length})"
            found.append(("stride", message))
        return found
