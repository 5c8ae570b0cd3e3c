"""Feature extraction as a task of the encoder engine: one embedding of each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_triton.encoder.rows import TEXT, Column, Values, given_texts, integer_in, one_of, option
from hf_triton.encoder.sentence_transformers.prompts import USES, Prompts
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup, token_counts
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import boolean, text

from .pooling import Normalize, Pooling, module_of

OUTPUTS = frozenset(("embedding", "num_input_tokens", "truncated", "similarity"))
# Pooling modes that models.yaml and sentence-transformers' files name differently.
_MODES = {"last": "lasttoken"}


class FeatureExtraction(EncoderTask):
    """Embeds texts with sentence-transformers' models and with any encoder or decoder whose tokens
    can be pooled.
    """

    auto_class = "AutoModel"
    output = "hidden"
    saved_as = "SentenceTransformer"
    takes_list = True

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        files, options = setup.saved, setup.options
        self._pooling = Pooling(_modes(options.pooling, files, setup.config))
        modules, self.size = _post_pooling(files, self._pooling, setup.config, options.normalize)
        self._post_pooling = nn.Sequential(*modules)
        self._is_normalized = _ends_normalized(modules)
        self._prompts = Prompts(files, options.prompt, self.setup.tokenization)
        if (options.dimensions or 0) > self.size:
            raise LoadError(
                f"dimensions: got {options.dimensions}, this model's embeddings have {self.size}"
            )
        self._dimensions = options.dimensions or min(files.dimensions or self.size, self.size)

    @classmethod
    def auto_class_of(cls, config: Any) -> str:
        """T5 and similar models embed with their encoder alone, which may be saved alone."""
        saved = (config.architectures or [""])[0]
        has_encoder = config.is_encoder_decoder or saved.endswith("EncoderModel")
        return "AutoModelForTextEncoding" if has_encoder else cls.auto_class

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        return {
            TEXT: given_texts,
            "prompt_name": option(text, None),
            "input_type": option(one_of(*USES), None),  # a parameter alone
            "dimensions": option(integer_in(1, self.size), None),
            "return_num_input_tokens": option(boolean, False),
            "truncate": option(boolean, None),
        }

    def sent(self, rows: Sequence[Values], wanted: frozenset[str]) -> frozenset[str]:
        asked = sorted({row["dimensions"] or self._dimensions for row in rows})
        if len(asked) > 1:
            found = " and ".join(map(str, asked))
            raise RequestError(f"dimensions: got {found}, the rows of one request must agree")
        if wanted == OUTPUTS and not any(row["return_num_input_tokens"] for row in rows):
            return frozenset(("embedding",))
        return wanted

    @torch.inference_mode()
    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> torch.Tensor:
        """(num_outputs, hidden) of each text -> the embeddings, (texts, size) float32."""
        pooled = self._pooling(outputs, [encoding.positions for encoding in encodings])
        embeddings: torch.Tensor = self._post_pooling.to(pooled.device)(pooled)
        return embeddings

    def row(self, row: Values) -> Prepared:
        prompt = self._prompts.text(row["prompt_name"], row["input_type"])
        encoding = self.setup.tokenization.encode(
            row["field"], row[TEXT], prompt=prompt, truncate=row["truncate"]
        )
        skipped = self._prompts.num_skipped(prompt)
        first = skipped if skipped < len(encoding) else 0
        positions = self._pooling.positions(len(encoding), first)
        if positions is not None:
            encoding = replace(encoding, positions=positions)
        return Prepared([encoding], partial(self._answer, row["dimensions"], encoding))

    def _answer(
        self, asked: int | None, encoding: Encoding, embeddings: list[Array]
    ) -> Mapping[str, Array]:
        """``embeddings``: (size,)."""
        return {
            "embedding": self._cut(embeddings[0], asked),
            **token_counts(encoding),
            # The function by which embeddings are to be compared.
            "similarity": strings([self.setup.saved.similarity]),
        }

    def _cut(self, embedding: Array, asked: int | None) -> Array:
        """The first ``asked`` numbers, or those of the model, of length 1 again where all of them
        had it; but not where the model's files alone say so, as in sentence-transformers.
        """
        dimensions = asked or self._dimensions
        first = embedding[:dimensions]
        of_files = not (asked or self.setup.options.dimensions)
        if dimensions == self.size or of_files or not self._is_normalized:
            return first
        return first / max(float(np.linalg.norm(first)), 1e-12)


def _modes(asked: str, files: SentenceFiles, config: Any) -> tuple[str, ...]:
    if asked != "auto":
        return (_MODES.get(asked, asked),)
    if files.pooling is not None:
        return files.pooling
    architectures = config.architectures or [""]
    is_causal = architectures[0].endswith("ForCausalLM") and getattr(config, "is_causal", True)
    return ("lasttoken",) if is_causal else ("mean",)


def _post_pooling(
    files: SentenceFiles, pooling: Pooling, config: Any, normalize: bool | None
) -> tuple[list[nn.Module], int]:
    size = int(config.get_text_config().hidden_size) * len(pooling.modes)
    modules: list[nn.Module] = []
    for step in files.steps:
        module, size = module_of(step, size)
        modules.append(module)
    if normalize is True and not _ends_normalized(modules):
        modules.append(Normalize())
    if normalize is False and _ends_normalized(modules):
        modules.pop()
    return modules, size


def _ends_normalized(modules: Sequence[nn.Module]) -> bool:
    return bool(modules) and isinstance(modules[-1], Normalize)
