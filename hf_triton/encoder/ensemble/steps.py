"""The three steps of an ensemble: texts to rows of tokens, rows to the model's output, output to
the answer. The encoder engine runs each as if it were a task.

The last step also gets the request's own tensors and reads them a second time. So a task's code is
the same in one model and in three, and the steps' processes share no state. Between steps
``input_ids``, ``attention_mask`` and ``token_type_ids`` are (rows, longest row) int64, padded on
the right, as every exported encoder takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import NO_NUMBERS, EngineError, LoadError, RequestError
from hf_triton.runtime.request.responder import Array
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.runtime.weights.served_model import ServedModel
from hf_triton.runtime.weights.untrusted_files import within_files
from hf_triton.runtime.weights.weight_loading import load_without_weights

from ..encoder_loading import EncoderFiles, LoadedEncoder
from ..engine.encoder_engine import EncoderEngine
from ..rows import stack_rows
from ..task import EncoderTask, Prepared, task_of
from ..texts.encoding import ROWS, Encoding, padded_rows, padding_filler

MODEL_OUTPUT = "model_output"
COMPUTED = "output"  # its name in exported models (OUTPUT of onnx/export.py)


class TokenizerStep(EncoderTask):
    def __init__(self, task: EncoderTask, pad_to_multiple_of: int) -> None:
        super().__init__(task.setup)
        self._task, self._multiple = task, pad_to_multiple_of
        self._pad_id = padding_filler(task.setup.config)

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        # The model step fails without a row, so a request with nothing to compute sends one token.
        encodings = self._task.prepare(fields, wanted).encodings or [Encoding([self._pad_id])]
        longest = max(map(len, encodings))
        multiple = -(-longest // self._multiple) * self._multiple
        length = max(longest, min(multiple, self.setup.tokenization.max_length))
        rows = padded_rows(encodings, length, self._pad_id)
        return Prepared((), lambda _: dict(zip(ROWS, rows, strict=True)))


class ModelStep(EncoderTask):
    """Computes the model's output for rows of tokens, as an exported model does on a Triton
    backend.
    """

    def __init__(self, task: EncoderTask) -> None:
        super().__init__(task.setup)
        if task.hides_tokens:
            raise LoadError("layout: ensemble: its queries are filled up, which needs single")
        tokenization, config = task.setup.tokenization, task.setup.config.get_text_config()
        self._max_length = tokenization.max_length
        self._vocab_size = tokenization.num_embeddings or config.vocab_size
        types = getattr(config, "type_vocab_size", 1)
        self._num_token_types = types if tokenization.has_token_types else 0

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Makes an encoding of each row, without its padding."""
        rows = {name: _array(fields, name) for name in ROWS}
        length = rows["input_ids"].shape[1] if self.output != "sequences" else 0
        return Prepared(
            self._encodings(rows),
            lambda outputs: {COMPUTED: stack_rows(outputs, batched=True, length=length)},
        )

    def _encodings(self, rows: Mapping[str, Array]) -> list[Encoding]:
        """Raises RequestError for tensors of different shapes and for tokens that the model does
        not have: one such row would fail the other callers' rows in its batch.
        """
        ids, mask, types = rows.values()
        for name in ROWS[1:]:
            if rows[name].shape != ids.shape:
                got = f"got shape {rows[name].shape}, input_ids has {ids.shape}"
                raise RequestError(f"{name}: {got}")
        lengths = _lengths(mask)
        if max(lengths) > self._max_length:
            got = f"got {max(lengths)} tokens, this model takes at most {self._max_length}"
            raise RequestError(f"input_ids: {got}")
        _check_range("input_ids", ids, self._vocab_size)
        if not self._num_token_types:
            return [Encoding(row[:n]) for row, n in zip(ids.tolist(), lengths, strict=True)]
        _check_range("token_type_ids", types, self._num_token_types)
        found = zip(ids.tolist(), types.tolist(), lengths, strict=True)
        return [Encoding(row[:n], kinds[:n]) for row, kinds, n in found]


class PostprocessingStep(EncoderTask):
    def __init__(self, task: EncoderTask) -> None:
        super().__init__(task.setup)
        self._task = task

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        prepared = self._task.prepare(fields, wanted)
        results = self._results(fields, prepared.encodings) if prepared.encodings else []
        return Prepared((), lambda _: prepared.answer(results))

    @torch.inference_mode()
    def _results(self, fields: RequestFields, encodings: Sequence[Encoding]) -> list[Array]:
        """The results that a single model would have: float32, reduced by the task. Raises
        RequestError if the model's output does not fit the request, EngineError for NaN.
        """
        computed = torch.from_numpy(_array(fields, MODEL_OUTPUT))
        per_token = self.output != "sequences"
        longest = max(map(len, encodings)) if per_token else 0
        if len(computed) != len(encodings) or computed.shape[1] < longest:
            rows = f"{len(encodings)} rows" + (f" of at least {longest} tokens" * per_token)
            raise RequestError(f"{MODEL_OUTPUT}: got {tuple(computed.shape)}, expected {rows}")
        outputs = [
            encoding.of_tokens(output) if per_token else output
            for encoding, output in zip(encodings, computed, strict=True)
        ]
        results = [part.float().numpy() for part in self._task.reduce(outputs, encodings)]
        if not all(np.isfinite(result).all() for result in results):
            raise EngineError(NO_NUMBERS)
        return results


def _array(fields: RequestFields, name: str) -> Any:
    found = fields.inputs.get(name)
    if found is None:
        raise RequestError(f"{name}: missing")
    return found


def load(served: ServedModel, placement: Placement, num_threads: int) -> LoadedEncoder:
    """Loads the whole model, or the step of an ensemble that ``served.role`` names. Raises
    LoadError.
    """
    files = EncoderFiles(served, *task_of(served))
    if served.role == "whole":
        return files.load(placement, num_threads)
    if served.role == "model":
        return files.load(placement, num_threads, ModelStep)
    with within_files(files.saved.folder):  # these steps need no weights
        model = load_without_weights(served, files.model_class, files.config)
    task = files.task(model)
    steps: Mapping[str, Callable[[], EncoderTask]] = {
        "tokenizer": partial(TokenizerStep, task, served.pad_to_multiple_of),
        "postprocessing": partial(PostprocessingStep, task),
    }
    if served.role not in steps:
        raise LoadError(f"model.json: an encoder has no role {served.role}")
    # Never started: there is nothing to compute.
    engine = EncoderEngine(_no_runner, task.reduce, max_num_batched_tokens=1, num_threads=1)
    description = f"{served.source}, {served.role}"
    return LoadedEncoder(engine, steps[served.role](), files.options, description)


def _no_runner() -> Any:
    raise NotImplementedError


def _lengths(mask: Array) -> list[int]:
    """The number of tokens in each row. Raises RequestError unless padding comes after them."""
    lengths = mask.sum(axis=1)
    expected = np.arange(mask.shape[1])[None, :] < lengths[:, None]
    if not len(mask) or not lengths.all() or not np.array_equal(mask, expected):
        allowed = "allowed: in every row ones for its tokens, at least one, then zeros"
        raise RequestError(f"attention_mask: a row has gaps, no token or other numbers; {allowed}")
    found: list[int] = lengths.tolist()
    return found


def _check_range(name: str, values: Array, limit: int) -> None:
    if values.min() < 0 or values.max() >= limit:
        wrong = values[(values < 0) | (values >= limit)][0]
        raise RequestError(f"{name}: got {wrong}, allowed: 0 to {limit - 1}")
