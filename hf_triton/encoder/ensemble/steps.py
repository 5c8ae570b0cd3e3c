"""The three steps of an ensemble, each in the place of a task: texts to rows of tokens, rows to the
model's output, output to the answer.

The last step is given the request's own tensors too and reads them a second time. So a task is the
same code in one model and in three, and the steps' processes share no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.tensors import RequestFields

from ..task import Array, EncoderTask, Prepared, TaskSetup
from ..texts.encoding import Encoding
from ..texts.padding import padding_filler
from .token_rows import RowLimits, encodings_of, padded_outputs, token_rows

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
            # Where there is nothing to compute, the model step still needs a row.
            encodings or [Encoding([self._pad_id])],
            self._pad_id,
            multiple=self._multiple,
            max_length=self._task.setup.tokenization.max_length,
        )
        found = {name: rows[name] for name in ROWS if name in wanted}
        return Prepared((), lambda _: found)


class ModelStep(EncoderTask):
    """Rows of tokens to the model's output: what an exported model does on a backend of Triton's.

    A class of its own for each task, made by ``model_step``.
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
    }
    return type(f"{task_class.__name__}Model", (ModelStep,), members)


class PostprocessingStep:
    """Makes the answers of ``task`` of what the model step computed."""

    def __init__(self, task: EncoderTask) -> None:
        self._task = task

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Everything is done here."""
        prepared = self._task.prepare(fields, wanted)
        results = self._results(fields, prepared.encodings) if prepared.encodings else []
        return Prepared((), lambda _: prepared.answer(results))

    @torch.inference_mode()
    def _results(self, fields: RequestFields, encodings: Sequence[Encoding]) -> list[Array]:
        """What the engine hands on in a single model: float32, reduced by the task."""
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
    """(length, size) -> (num_outputs, size)."""
    if encoding.positions is not None:
        return output[list(encoding.positions)]
    return output[: len(encoding)]


def _array(fields: RequestFields, name: str) -> Any:
    found = fields.array(name)
    if found is None:
        raise RequestError(f"{name}: missing")
    return found
