"""The ``options:`` of a text-classification model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_triton.encoder.options import EncoderOptions
from hf_triton.runtime.option import option


@dataclass(frozen=True)
class Options(EncoderOptions):
    OUTPUT, TASK = "sequences", "classification:TextClassification"

    function_to_apply: Literal["auto", "softmax", "sigmoid", "none"] = option(
        "auto",
        "how logits become scores; auto: by the model's problem type, as in transformers: "
        "softmax; sigmoid for one label or for several at once; none for regression; for one "
        "label the function that sentence-transformers wrote into the model's files, if it did",
    )
    top_k: int = option(
        1, "labels in an answer, best first; -1 is all of them", unit="labels", least=-1
    )
    pairs: Literal["optional", "required"] = option(
        "optional",
        "required: a request without text_pair is refused, for rerankers and other "
        "models that compare two texts",
    )

    def problems(self) -> list[tuple[str, str]]:
        found = super().problems()
        if self.top_k == 0:
            found.append(("top_k", "got 0, expected -1 (all labels) or at least 1"))
        return found
