"""Feature extraction as a task of the encoder engine: one embedding of each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_triton.encoder.rows import (
    LIST,
    count_rows,
    given_texts,
    integer_in,
    one_of,
    stack_rows,
    text_rows,
    token_counts,
)
from hf_triton.encoder.sentence_transformers.prompts import USES, Prompts
from hf_triton.encoder.sentence_transformers.reading import SentenceFiles
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields, boolean, each_row, text

from .pooling import Normalize, Pooling, module_of

_SIMILARITY = "similarity"  # the function by which embeddings are to be compared
INPUTS = (
    *("text_input", LIST, "prompt_name", "dimensions"),
    *("return_num_input_tokens", "truncate"),
    "input_type",  # a parameter alone
)
OUTPUTS = frozenset(("embedding", "num_input_tokens", "truncated", _SIMILARITY))
# What models.yaml calls otherwise than sentence-transformers' files.
_MODES = {"last": "lasttoken"}


@dataclass(frozen=True)
class _Row:
    """One text, perhaps an empty one. ``field`` is the tensor that it came in; ``input_type`` its
    use, one of USES.
    """

    field: str
    text: str
    prompt_name: str | None
    input_type: str | None
    dimensions: int | None
    truncate: bool | None


class FeatureExtraction(EncoderTask):
    """Embeds texts with sentence-transformers' models and with any encoder or decoder whose tokens
    can be pooled.
    """

    auto_class = "AutoModel"
    output = "hidden"
    saved_as = "SentenceTransformer"

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

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        name = count_rows(fields, INPUTS)
        columns = zip(
            given_texts(fields, name),
            fields.values("prompt_name", text, None),
            fields.values("input_type", one_of(*USES), None),
            fields.values("dimensions", integer_in(1), None),
            fields.values("truncate", boolean, None),
            strict=True,
        )
        rows = [_Row(name, *values) for values in columns]
        counts_wanted = any(fields.values("return_num_input_tokens", boolean, False))
        if wanted == OUTPUTS and not counts_wanted:  # the request lists none
            wanted = frozenset(("embedding",))
        dimensions = self._asked_dimensions(rows)
        encodings = each_row(self._encode, rows)
        batched = self.setup.batched or name == LIST
        counts = token_counts(encodings, batched=batched)
        answer = partial(self._answer, rows, counts, dimensions, wanted, batched=batched)
        return Prepared(encodings, answer)

    @torch.inference_mode()
    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> torch.Tensor:
        """(num_outputs, hidden) of each text -> the embeddings, (texts, size) float32."""
        pooled = self._pooling(outputs, [encoding.positions for encoding in encodings])
        embeddings: torch.Tensor = self._post_pooling.to(pooled.device)(pooled)
        return embeddings

    def _encode(self, row: _Row) -> Encoding:
        prompt = self._prompts.text(row.prompt_name, row.input_type)
        tokenization = self.setup.tokenization
        whole = tokenization.encode(row.field, row.text, prompt=prompt, truncate=row.truncate)
        skipped = self._prompts.num_skipped(prompt)
        first = skipped if skipped < len(whole) else 0
        positions = self._pooling.positions(len(whole), first)
        return whole if positions is None else replace(whole, positions=positions)

    def _asked_dimensions(self, rows: Sequence[_Row]) -> int:
        asked = {row.dimensions or self._dimensions for row in rows}
        if max(asked) > self.size:
            raise RequestError(
                f"dimensions: got {max(asked)}, this model's embeddings have {self.size}"
            )
        if len(asked) > 1:
            found = " and ".join(map(str, sorted(asked)))
            raise RequestError(f"dimensions: got {found}, the rows of one request must agree")
        return asked.pop()

    def _answer(
        self,
        rows: Sequence[_Row],
        counts: Mapping[str, Array],
        dimensions: int,
        wanted: frozenset[str],
        embeddings: list[Array],
        *,
        batched: bool,
    ) -> Mapping[str, Array]:
        """``embeddings``: (size,) of each text."""
        cut = [
            self._cut(embedding, dimensions, row.dimensions or self.setup.options.dimensions)
            for row, embedding in zip(rows, embeddings, strict=True)
        ]
        outputs = {"embedding": stack_rows(cut, batched=batched), **counts}
        if _SIMILARITY in wanted:
            similarity = [self.setup.saved.similarity]
            outputs[_SIMILARITY] = text_rows([similarity] * len(rows), batched=batched)
        return {name: array for name, array in outputs.items() if name in wanted}

    def _cut(self, embedding: Array, dimensions: int, asked: int | None) -> Array:
        """The first ``dimensions`` numbers, of length 1 again where all of them had it; but not
        where the model's files alone have ``asked`` for it, as in sentence-transformers.
        """
        first = embedding[:dimensions]
        if dimensions == self.size or asked is None or not self._is_normalized:
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
