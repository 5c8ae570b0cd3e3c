"""The three steps of an ensemble, each in the place of a task: texts to rows of tokens, rows to the
model's output, output to the answer.

The last step is given the request's own tensors too and reads them a second time. So a task is the
same code in one model and in three, and the steps' processes share no state. Between steps
``input_ids``, ``attention_mask`` and ``token_type_ids`` are (rows, longest row) int64, padded on
the right, as every exported encoder takes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.devices.device import Placement
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.runtime.weights.declared_size import within_files
from hf_triton.runtime.weights.loading import load_on_meta_device
from hf_triton.runtime.weights.served_model import ServedModel

from ..engine.engine import EncoderEngine
from ..loading import LoadedEncoder, auto_class_of, load_encoder, make_task, read_files
from ..options import EncoderOptions
from ..task import Array, EncoderTask, Prepared, TaskSetup
from ..texts.encoding import Encoding
from ..texts.padding import padding_filler

ROWS = ("input_ids", "attention_mask", "token_type_ids")
MODEL_OUTPUT = "model_output"
COMPUTED = "output"  # the name that exported models have for it (OUTPUT of onnx/export.py)


class TokenizerStep:
    """Reads and tokenises requests of ``task``."""

    def __init__(self, task: EncoderTask, pad_to_multiple_of: int) -> None:
        self._task = task
        self._multiple = pad_to_multiple_of
        self._pad_id = padding_filler(task.setup.config)

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Everything is done here; raises RequestError for the caller's mistakes."""
        encodings = self._task.prepare(fields, wanted).encodings
        rows = token_rows(
            # The model step needs a row even if there is nothing to compute.
            encodings or [Encoding([self._pad_id])],
            self._pad_id,
            multiple=self._multiple,
            max_length=self._task.setup.tokenization.max_length,
        )
        found = {name: rows[name] for name in ROWS if name in wanted}
        return Prepared((), lambda _: found)


class ModelStep(EncoderTask):
    """Rows of tokens to the model's output, as an exported model computes on a Triton backend.
    ``model_step`` makes a subclass for each task.
    """

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        config = setup.config.get_text_config()
        has_types = setup.tokenization.has_token_types
        self._limits = RowLimits(
            setup.tokenization.max_length,
            setup.tokenization.num_embeddings or config.vocab_size,
            getattr(config, "type_vocab_size", 1) if has_types else 0,
        )

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Each row is an encoding, without its padding."""
        rows = {name: _array(fields, name) for name in ROWS}
        encodings = encodings_of(rows, self._limits)
        return Prepared(encodings, partial(self._answer, rows["input_ids"].shape[1]))

    def _answer(self, length: int, outputs: list[Array]) -> Mapping[str, Array]:
        return {COMPUTED: padded_outputs(outputs, length)}


def model_step(task_class: type[EncoderTask]) -> type[ModelStep]:
    """The model step of a task: with the task's head and output."""
    members = {
        "auto_class": task_class.auto_class,
        "auto_class_of": task_class.auto_class_of,
        "output": task_class.output,
        "saved_as": task_class.saved_as,
    }
    return type(f"{task_class.__name__}Model", (ModelStep,), members)


class PostprocessingStep:
    """Makes the answers of ``task`` from the model step's output."""

    def __init__(self, task: EncoderTask) -> None:
        self._task = task

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        prepared = self._task.prepare(fields, wanted)
        results = self._results(fields, prepared.encodings) if prepared.encodings else []
        return Prepared((), lambda _: prepared.answer(results))

    @torch.inference_mode()
    def _results(self, fields: RequestFields, encodings: Sequence[Encoding]) -> list[Array]:
        """The results as in a single model: float32, reduced by the task."""
        computed = torch.from_numpy(_array(fields, MODEL_OUTPUT))
        per_token = self._task.output != "sequences"
        longest = max(map(len, encodings)) if per_token else 0
        if len(computed) != len(encodings) or computed.shape[1] < longest:
            rows = f"{len(encodings)} rows" + (f" of at least {longest} tokens" * per_token)
            raise RequestError(f"{MODEL_OUTPUT}: got {tuple(computed.shape)}, expected {rows}")
        outputs = [
            _wanted(encoding, output) if per_token else output
            for encoding, output in zip(encodings, computed, strict=True)
        ]
        return [part.float().numpy() for part in self._task.reduce(outputs, encodings)]


def _wanted(encoding: Encoding, output: torch.Tensor) -> torch.Tensor:
    """Selects the wanted tokens: (length, size) -> (num_outputs, size)."""
    if encoding.positions is not None:
        return output[list(encoding.positions)]
    return output[: len(encoding)]


def _array(fields: RequestFields, name: str) -> Any:
    found = fields.array(name)
    if found is None:
        raise RequestError(f"{name}: missing")
    return found


def load_role(
    served: ServedModel,
    options: EncoderOptions,
    task_class: type[EncoderTask],
    placement: Placement,
    num_threads: int,
) -> LoadedEncoder:
    """Loads what ``served.role`` says.

    Raises:
        LoadError: with the one line that the operator reads.
    """
    if served.role in ("whole", "model"):
        whole = served.role == "whole"
        kind = task_class if whole else model_step(task_class)
        return load_encoder(served, options, kind, placement, num_threads)
    description = f"{served.source}, {served.role}"
    task = weightless_task(served, options, task_class)
    if served.role == "tokenizer":
        step = TokenizerStep(task, served.pad_to_multiple_of)
        return LoadedEncoder(no_engine(), step, description, task.setup.tokenization.tokenizer)
    if served.role == "postprocessing":
        return LoadedEncoder(no_engine(), PostprocessingStep(task), description)
    raise LoadError(f"model.json: role {served.role} is none of an encoder's")


def no_engine() -> EncoderEngine:
    """An engine that is never started, for a step without computation."""

    def nothing(*_: Any) -> Any:
        raise NotImplementedError

    return EncoderEngine(nothing, nothing, max_num_batched_tokens=1, num_threads=1)


def weightless_task(
    served: ServedModel, options: EncoderOptions, task_class: type[EncoderTask]
) -> EncoderTask:
    """The task with its tokenizer, but without the model's weights."""
    saved, config = read_files(served, task_class)
    with within_files(saved.folder):
        model = load_on_meta_device(served, auto_class_of(task_class, config), config)
    return make_task(served, options, task_class, saved, model)


@dataclass(frozen=True)
class RowLimits:
    """The model's limits. ``num_token_types`` is 0 where it takes none."""

    max_length: int
    vocab_size: int
    num_token_types: int


def token_rows(
    encodings: Sequence[Encoding], pad_id: int, *, multiple: int, max_length: int
) -> dict[str, Array]:
    """The three tensors by name; rows are padded to a multiple of ``multiple`` tokens, at most
    ``max_length``.
    """
    longest = max(map(len, encodings))
    length = max(longest, min(-(-longest // multiple) * multiple, max_length))
    ids = np.full((len(encodings), length), pad_id, dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding)] = encoding.input_ids
        mask[row, : len(encoding)] = 1
        if encoding.token_type_ids is not None:
            types[row, : len(encoding)] = encoding.token_type_ids
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def encodings_of(rows: Mapping[str, Array], limits: RowLimits) -> list[Encoding]:
    """The encoding of each row.

    Raises:
        RequestError: tensors that don't fit together, or tokens that the model does not have: one
            such row would fail the step that it shares with other callers'.
    """
    ids, mask, types = (rows[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    for name, other in (("attention_mask", mask), ("token_type_ids", types)):
        if other.shape != ids.shape:
            raise RequestError(f"{name}: got shape {other.shape}, input_ids has {ids.shape}")
    lengths = _lengths(mask)
    if max(lengths) > limits.max_length:
        got = f"got {max(lengths)} tokens, this model takes at most {limits.max_length}"
        raise RequestError(f"input_ids: {got}")
    _check_range("input_ids", ids, limits.vocab_size)
    if limits.num_token_types:
        _check_range("token_type_ids", types, limits.num_token_types)
    kinds = types.tolist() if limits.num_token_types else [None] * len(lengths)
    found = zip(ids.tolist(), kinds, lengths, strict=True)
    return [Encoding(row[:n], None if kind is None else kind[:n]) for row, kind, n in found]


def padded_outputs(outputs: Sequence[Array], length: int) -> Array:
    """float32 (rows, length, size) for outputs (tokens, size), zeros at padding; (rows, size) for
    outputs (size,).
    """
    if outputs[0].ndim == 1:
        return np.stack(outputs)
    found = np.zeros((len(outputs), length, outputs[0].shape[1]), dtype=np.float32)
    for row, output in enumerate(outputs):
        found[row, : len(output)] = output
    return found


def _lengths(mask: Array) -> list[int]:
    """The number of tokens in each row, which come before its padding."""
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
