"""The ``options:`` of a feature-extraction model.

Standard library only: the generator loads this file to check models.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_encoder.options import EncoderOptions

# Read by generator/spec/task_folders.py.
PACKAGES = ("hf_encoder",)
DETERMINISTIC = True
OUTPUT = "hidden"


@dataclass(frozen=True)
class Options(EncoderOptions):
    """How one embedding model is run; ``None`` means: as the model's own files say."""

    pooling: Literal[
        "auto", "mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens"
    ] = field(
        default="auto",
        metadata={
            "help": "how tokens become one embedding; auto: what sentence-transformers' files of "
            "the model say, without any last for a causal language model and mean for all others"
        },
    )
    normalize: bool | None = field(
        default=None,
        metadata={
            "help": "true: every embedding has length 1; default: what sentence-transformers' "
            "files of the model say, false without any"
        },
    )
    prompt: str | None = field(
        default=None,
        metadata={
            "help": "text put before every input whose request names no prompt_name, such as "
            "'query: '; default: the prompt that the model's files call the default"
        },
    )
    dimensions: int | None = field(
        default=None,
        metadata={
            "help": "embeddings are cut to so many numbers (and made length 1 again where they "
            "had it), for models trained for that; default: all of them",
            "unit": "dimensions",
            "min": 1,
        },
    )
