"""Feature extraction as a task of the encoder engine: one embedding of each text, as a vector, as
the weights of words (sparse), or as a vector for each token (late interaction); or of two texts how
near they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_triton.encoder.rows import TEXT, Values, given_texts, integer_in, one_of, option
from hf_triton.encoder.sentence_transformers.late_interaction import DOCUMENT, QUERY
from hf_triton.encoder.sentence_transformers.prompts import USES, Prompts
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup, token_counts
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.responder import Array, strings
from hf_triton.runtime.request.tensors import boolean, text

from .late_texts import LateTexts
from .pooling import Normalize, Pooling, SpladePooling, module_of
from .similarity import SIMILARITIES

_COUNTS = ("num_input_tokens", "truncated", "similarity")
_ONE, _SPARSE, _LATE = ("embedding",), ("token_ids", "weights"), ("token_embeddings",)
_SCORE = ("score",)
OUTPUTS = frozenset((*_ONE, *_SPARSE, *_LATE, *_SCORE, *_COUNTS))
_QUERIES, _DOCUMENTS = "search_query", "search_document"
# Pooling modes that models.yaml and sentence-transformers' files name differently.
_MODES = {"last": "lasttoken"}


class FeatureExtraction(EncoderTask):
    """Embeds texts with models of sentence-transformers, PyLate and ColBERT, and with any
    encoder or decoder whose tokens can be pooled.
    """

    auto_class = "AutoModel"
    saved_as = ("SentenceTransformer", "SparseEncoder", "MultiVectorEncoder")
    takes_list = True

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        files, options = setup.saved, setup.options
        is_fixed = files.late is not None or (
            files.splade is not None and options.pooling != "splade"
        )
        if is_fixed and options.pooling != "auto":
            raise LoadError(f"pooling: got {options.pooling}, the model's files have another way")
        self._late: LateTexts | None = None
        self._answered: tuple[str, ...] = _ONE
        self._similarity = files.similarity
        self._pooling: Pooling | SpladePooling = Pooling(())
        size = int(setup.config.get_text_config().hidden_size)
        if files.late is not None:
            self._late, self._answered = LateTexts(files.late, setup.tokenization), _LATE
            self.hides_tokens = bool(files.late.filled_length) and not files.late.are_seen
        elif _is_sparse(files, options):
            self._pooling, self._answered = SpladePooling(files.splade or {}), _SPARSE
            self.output, size = "tokens", int(setup.config.get_text_config().vocab_size)
            self._similarity = "dot" if files.splade is None else files.similarity
        else:
            self._pooling = Pooling(_modes(options.pooling, files, setup.config))
            size *= len(self._pooling.modes)
        modules, self.size = _post_pooling(files, size, options.normalize)
        self._post_pooling = nn.Sequential(*modules)
        self._is_normalized = _ends_normalized(modules)
        self._prompts = Prompts(files, options.prompt, self.setup.tokenization)
        if (options.dimensions or 0) > self.size:
            raise LoadError(
                f"dimensions: got {options.dimensions}, this model's embeddings have {self.size}"
            )
        self._dimensions = options.dimensions or min(files.dimensions or self.size, self.size)
        self.columns = {
            TEXT: given_texts,
            "text_pair": lambda fields, name: fields.optional_texts(name),
            "prompt_name": option(text, None),
            "input_type": option(one_of(*USES), None),  # a parameter alone
            "dimensions": option(integer_in(1, self.size), None),
            "return_num_input_tokens": option(boolean, False),
            "truncate": option(boolean, None),
        }

    @classmethod
    def auto_class_of(cls, config: Any, saved: SentenceFiles, options: Any) -> str:
        """T5 and similar models embed with their encoder alone, which may be saved alone. Sparse
        embeddings are made of the words that could be in the place of each token.
        """
        if _is_sparse(saved, options):
            return "AutoModelForMaskedLM"
        kind = (config.architectures or [""])[0]
        has_encoder = config.is_encoder_decoder or kind.endswith("EncoderModel")
        return "AutoModelForTextEncoding" if has_encoder else cls.auto_class

    def sent(self, rows: Sequence[Values], wanted: frozenset[str]) -> frozenset[str]:
        asked = sorted({row["dimensions"] or self._dimensions for row in rows})
        if len(asked) > 1:
            found = " and ".join(map(str, asked))
            raise RequestError(f"dimensions: got {found}, the rows of one request must agree")
        pairs = [row["text_pair"] is not None for row in rows]
        if len({*pairs}) > 1:
            raise RequestError("text_pair: missing, all rows of one request have one or none has")
        offered = _SCORE if pairs[0] else self._answered
        if wanted == OUTPUTS:
            counts = any(row["return_num_input_tokens"] for row in rows)
            return frozenset((*offered, *(_COUNTS if counts else ())))
        if unknown := sorted((wanted & OUTPUTS) - {*offered, *_COUNTS}):
            how = "two texts" if pairs[0] else "a text"
            allowed = ", ".join((*offered, *_COUNTS))
            raise RequestError(
                f"{unknown[0]}: no output of {how} to this model; allowed: {allowed}"
            )
        return wanted

    @torch.inference_mode()
    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> torch.Tensor | Sequence[torch.Tensor]:
        """(num_outputs, hidden) of each text -> the embeddings, (texts, size) float32; of late
        interaction (num_outputs, size) of each.
        """
        if self._late is not None:
            vectors = self._post_pooling.to(outputs[0].device)(torch.cat([*outputs]).float())
            parts: Sequence[torch.Tensor] = vectors.split([*map(len, outputs)])
            return parts
        pooled = self._pooling(outputs, [encoding.positions for encoding in encodings])
        embeddings: torch.Tensor = self._post_pooling.to(pooled.device)(pooled)
        return embeddings

    def row(self, row: Values) -> Prepared:
        if row["text_pair"] is None:
            encodings = [self._encoding(row, row["field"], row[TEXT], row["input_type"])]
        else:
            encodings = [
                self._encoding(row, row["field"], row[TEXT], _QUERIES),
                self._encoding(row, "text_pair", row["text_pair"], _DOCUMENTS),
            ]
        return Prepared(encodings, partial(self._answer, row, encodings))

    def _encoding(self, row: Values, field: str, given: str, use: str | None) -> Encoding:
        """``use`` counts for late interaction in any request, else only where it asks for it."""
        name = row["prompt_name"]
        if self._late is not None:
            if name == QUERY and row["text_pair"] is None:
                use = _QUERIES
            prompt = self._prompts.text(
                None if name in (QUERY, DOCUMENT) else name, use or _DOCUMENTS
            )
            role = QUERY if use == _QUERIES else DOCUMENT
            return self._late.encode(field, given, role, prompt, truncate=row["truncate"])
        prompt = self._prompts.text(name, row["input_type"])
        encoding = self.setup.tokenization.encode(
            field, given, prompt=prompt, truncate=row["truncate"]
        )
        skipped = self._prompts.num_skipped(prompt)
        first = skipped if skipped < len(encoding) else 0
        positions = self._pooling.positions(len(encoding), first)
        return encoding if positions is None else replace(encoding, positions=positions)

    def _answer(
        self, row: Values, encodings: Sequence[Encoding], found: list[Array]
    ) -> Mapping[str, Array]:
        """``found``: (size,) each, or (vectors, size)."""
        vectors = [self._cut(one, row["dimensions"]) for one in found]
        # The function by which embeddings are to be compared.
        told = {**token_counts(*encodings), "similarity": strings([self._similarity])}
        if row["text_pair"] is not None:
            score = SIMILARITIES[self._similarity](vectors[0], vectors[1])
            return {"score": np.array([score], dtype=np.float32), **told}
        if self._answered is _SPARSE:
            ids = np.flatnonzero(vectors[0]).astype(np.int32)
            return {"token_ids": ids, "weights": vectors[0][ids], **told}
        return {self._answered[0]: vectors[0], **told}

    def _cut(self, embedding: Array, asked: int | None) -> Array:
        """The first ``asked`` numbers, or those of the model, of length 1 again where all of them
        had it; but not where the model's files alone say so, as in sentence-transformers. Of a
        sparse one the largest numbers.
        """
        dimensions = asked or self._dimensions
        if self._answered is _SPARSE:
            kept = np.argsort(-np.abs(embedding), kind="stable")[:dimensions]
            found = np.zeros_like(embedding)
            found[kept] = embedding[kept]
            return found
        first = embedding[..., :dimensions]
        of_files = not (asked or self.setup.options.dimensions)
        if dimensions == self.size or of_files or not self._is_normalized:
            return first
        lengths: Array = np.linalg.norm(first, axis=-1, keepdims=True)
        unit: Array = first / np.maximum(lengths, 1e-12)
        return unit


def _is_sparse(files: SentenceFiles, options: Any) -> bool:
    return files.splade is not None or options.pooling == "splade"


def _modes(asked: str, files: SentenceFiles, config: Any) -> tuple[str, ...]:
    if asked != "auto":
        return (_MODES.get(asked, asked),)
    if files.pooling is not None:
        return files.pooling
    architectures = config.architectures or [""]
    is_causal = architectures[0].endswith("ForCausalLM") and getattr(config, "is_causal", True)
    return ("lasttoken",) if is_causal else ("mean",)


def _post_pooling(
    files: SentenceFiles, size: int, normalize: bool | None
) -> tuple[list[nn.Module], int]:
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
