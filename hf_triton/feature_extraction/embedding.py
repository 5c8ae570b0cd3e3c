"""Feature extraction as a task of the encoder engine: one embedding of each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from hf_triton.encoder.answers.rows import stack_rows, token_counts
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields, each_row

from .pooling import Normalize, Pooling, module_of
from .prompts import Prompts
from .request import EmbeddingRequest, EmbeddingRow, read_request
from .sentence_transformers_files import SentenceFiles, read_sentence_files

OUTPUTS = frozenset(("embedding", "num_input_tokens", "truncated"))
# What models.yaml calls otherwise than sentence-transformers' files.
_MODES = {"last": "lasttoken"}


class FeatureExtraction(EncoderTask):
    """Sentence-transformers' models, and every encoder or decoder whose tokens can be pooled."""

    auto_class = "AutoModel"
    output = "hidden"

    def __init__(self, setup: TaskSetup) -> None:
        files = read_sentence_files(setup.files)
        options = setup.options
        super().__init__(replace(setup, tokenization=_shortened(setup, files)))
        self._lower_case = files.do_lower_case
        self._pooling = Pooling(_modes(options.pooling, files, setup.config))
        modules, self.size = _post_pooling(files, self._pooling, setup.config, options.normalize)
        self._post_pooling = nn.Sequential(*modules)
        self._is_normalized = _ends_normalized(modules)
        self._prompts = Prompts(files, options.prompt, self.setup.tokenization)
        self._dimensions = files.dimensions if options.dimensions is None else options.dimensions
        if (self._dimensions or 0) > self.size:
            raise LoadError(
                f"dimensions: got {self._dimensions}, this model's embeddings have {self.size}"
            )

    @classmethod
    def auto_class_of(cls, config: Any) -> str:
        """T5 and its like embed with their encoder alone."""
        return "AutoModelForTextEncoding" if config.is_encoder_decoder else cls.auto_class

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads and tokenises the texts, each with its prompt before it."""
        request = read_request(fields, batched=self.setup.batched)
        dimensions = self._asked_dimensions(request)
        names = _outputs(wanted, request)
        encodings = each_row(self._encode, request.rows)
        counts = token_counts(encodings, batched=request.is_batch)
        return Prepared(
            encodings,
            partial(self._answer, counts, dimensions, names, batched=request.is_batch),
        )

    @torch.inference_mode()
    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> torch.Tensor:
        """(num_outputs, hidden) of each text -> the embeddings, (texts, size) float32."""
        pooled = self._pooling(outputs, [encoding.positions for encoding in encodings])
        embeddings: torch.Tensor = self._post_pooling.to(pooled.device)(pooled)
        return embeddings

    def _encode(self, row: EmbeddingRow) -> Encoding:
        prompt = self._prompts.text(row.prompt_name, row.input_type)
        text = prompt + row.text
        tokenization = self.setup.tokenization
        whole = tokenization.encode(
            row.field, text.lower() if self._lower_case else text, truncate=row.truncate
        )
        skipped = self._prompts.num_skipped(prompt)
        first = skipped if skipped < len(whole) else 0
        positions = self._pooling.positions(len(whole), first)
        return whole if positions is None else replace(whole, positions=positions)

    def _asked_dimensions(self, request: EmbeddingRequest) -> int:
        asked = {row.dimensions or self._dimensions or self.size for row in request.rows}
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
        counts: Mapping[str, Array],
        dimensions: int,
        names: frozenset[str],
        embeddings: list[Array],
        *,
        batched: bool,
    ) -> Mapping[str, Array]:
        """``embeddings``: (size,) of each text."""
        cut = [self._cut(embedding, dimensions) for embedding in embeddings]
        outputs = {"embedding": stack_rows(cut, batched=batched), **counts}
        return {name: array for name, array in outputs.items() if name in names}

    def _cut(self, embedding: Array, dimensions: int) -> Array:
        """The first ``dimensions`` numbers, of length 1 again where all of them had it."""
        if dimensions == self.size:
            return embedding
        first = embedding[:dimensions]
        return first / max(float(np.linalg.norm(first)), 1e-12) if self._is_normalized else first


def _outputs(wanted: frozenset[str], request: EmbeddingRequest) -> frozenset[str]:
    """The outputs that a request lists; the embedding, and with a flag the others, where it lists
    none, and so arrives with all.
    """
    if wanted != OUTPUTS or request.wants_num_input_tokens:
        return wanted
    return frozenset(("embedding",))


def _shortened(setup: TaskSetup, files: SentenceFiles) -> Tokenization:
    """The tokenization up to the length that sentence-transformers' files name, which may be less
    than the model's; the option ``max_length`` wins over both.
    """
    given, longest = setup.tokenization, files.max_seq_length
    if setup.options.max_length is not None or longest is None or longest >= given.max_length:
        return given
    return given.shortened(longest)


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
    """The modules after pooling, and the size of what they answer."""
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
