"""The ``options:`` of a fill-mask model.

Standard library only: the generator loads this file to check models.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_encoder.options import EncoderOptions

# Read by generator/spec/task_folders.py.
PACKAGES = ("hf_encoder",)
DETERMINISTIC = True
QUANTIZES = True
OUTPUT = "tokens"


@dataclass(frozen=True)
class Options(EncoderOptions):
    """How one masked language model is run."""

    top_k: int = field(
        default=5,
        metadata={
            "help": "predictions for each mask, best first, where a request does not set top_k",
            "unit": "predictions",
            "min": 1,
        },
    )
    max_top_k: int = field(
        default=100,
        metadata={
            "help": "highest top_k that a request may set",
            "unit": "predictions",
            "min": 1,
        },
    )
    max_num_masks: int = field(
        default=64,
        metadata={
            "help": "most masks in one text; each takes one logit per token of the vocabulary",
            "unit": "masks",
            "min": 1,
        },
    )

    def problems(self) -> list[tuple[str, str]]:
        """Mistakes that only show in two fields together, each as (field, message)."""
        found = super().problems()
        if self.top_k > self.max_top_k:
            message = f"got {self.top_k}, expected at most max_top_k ({self.max_top_k})"
            found.append(("top_k", message))
        return found
