"""The ``options:`` of a feature-extraction model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options(EncoderOptions):
    OUTPUT, TASK = "hidden", "embedding:FeatureExtraction"

    pooling: Literal[
        "auto", "mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len_tokens", "splade"
    ] = option(
        "auto",
        "how the tokens' states become one embedding; auto: as the model's sentence-transformers "
        "files say; without such files, last for a causal language model and mean for all others; "
        "splade: sparse embeddings of a masked language model",
    )
    normalize: bool | None = option(
        None,
        "true: every embedding has length 1; default: as the model's "
        "sentence-transformers files say, false without such files",
    )
    prompt: str | None = option(
        None,
        "text put before every input whose request has no prompt_name, such as "
        "'query: '; default: the default prompt of the model's files",
    )
    dimensions: int | None = option(
        None,
        "cuts embeddings to so many numbers, and normalizes them again where they were "
        "normalized; for models trained for it (Matryoshka); of sparse ones the largest numbers; "
        "default: not cut",
        unit="dimensions",
        least=1,
    )
