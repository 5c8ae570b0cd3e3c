"""The interface of a task: it reads a request into encodings, and turns the model's outputs into
the response's.

A task knows nothing of batches, threads or Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from hf_triton.runtime.request.responder import Array
from hf_triton.runtime.request.tensors import RequestFields, each_row
from hf_triton.runtime.weights.served_model import ServedModel

from .options import EncoderOptions
from .rows import LIST, Column, Values, read_rows, stack_rows
from .sentence_transformers.reading import Kind, SentenceFiles
from .texts.encoding import Encoding
from .texts.tokenization import Tokenization

# "hidden": the last hidden state of each token, (tokens, hidden). "tokens": the head's output of
# each wanted token, (tokens, labels or vocab). "sequences": the head's output of each encoding,
# (encodings, labels).
OutputKind = Literal["hidden", "tokens", "sequences"]


@dataclass(frozen=True)
class Prepared:
    """A request that can be computed, or one row of it.

    ``answer`` takes the results of ``reduce``, a float32 array for each of ``encodings``, and
    returns outputs by name, (n,) each of one row; it runs on the thread that sends.
    """

    encodings: Sequence[Encoding]
    answer: Callable[[list[Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class TaskSetup:
    """The parts of a task: its own ``Options``, transformers' configuration of the model, and the
    contents of sentence-transformers' files. ``batched`` is True where max_batch_size is above 0.
    """

    options: Any
    config: Any
    saved: SentenceFiles
    tokenization: Tokenization
    batched: bool


class EncoderTask:
    """Made once at load; raises LoadError where the model can't do this task."""

    auto_class: ClassVar[str]  # of transformers, such as "AutoModelForSequenceClassification"
    hides_tokens = False  # some of a text's tokens are seen by none
    saved_as: ClassVar[tuple[Kind, ...]] = ()  # sentence-transformers' classes for its models
    takes_list: ClassVar[bool] = False  # the texts of several rows in one tensor
    columns: Mapping[str, Column]  # the fields of a request

    def __init__(self, setup: TaskSetup) -> None:
        self.setup = setup
        self.output: OutputKind = setup.options.OUTPUT

    @classmethod
    def auto_class_of(cls, config: Any, saved: SentenceFiles, options: Any) -> str:
        """The class for a model with these files, if it is not the same for all."""
        return cls.auto_class

    def row(self, row: Values) -> Prepared:
        """Tokenises one row. Raises RequestError."""
        raise NotImplementedError

    def sent(self, rows: Sequence[Values], wanted: frozenset[str]) -> frozenset[str]:
        """The outputs that a request of these rows is sent; ``wanted`` are those that it lists, all
        where it lists none. Raises RequestError where its rows can't be answered together.
        """
        return wanted

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads and tokenises one request; runs on tokenizer threads, several at once. Raises
        RequestError.
        """
        rows = read_rows(fields, self.columns, takes_list=self.takes_list)
        names = self.sent(rows, wanted)
        prepared = each_row(self.row, rows)
        batched = self.setup.batched or rows[0]["field"] == LIST
        # Equal texts are computed once, and so have the same numbers.
        unique = {encoding.inputs: encoding for one in prepared for encoding in one.encodings}

        def answer(results: list[Array]) -> Mapping[str, Array]:
            found = dict(zip(unique, results, strict=True))
            answers = [one.answer([found[e.inputs] for e in one.encodings]) for one in prepared]
            return {
                name: stack_rows([one[name] for one in answers], batched=batched)
                for name in answers[0]
                if name in names
            }

        return Prepared([*unique.values()], answer)

    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> Sequence[torch.Tensor] | torch.Tensor:
        """Reduces each encoding's output, (num_outputs, size), or (size,) where the kind is
        "sequences", to what ``answer`` needs; returns one tensor where all have the same shape.
        Runs on the engine's thread and the model's device.
        """
        return outputs


def task_of(served: ServedModel) -> tuple[EncoderOptions, type[EncoderTask]]:
    """A served model's options, and the class of its task, which they name as TASK. Raises
    LoadError.
    """
    folder = f"hf_triton.{served.task.replace('-', '_')}"
    options: EncoderOptions = served.read_options(resolve_name(f"{folder}.options:Options"))
    return options, resolve_name(f"{folder}.{options.TASK}")


def token_counts(*encodings: Encoding) -> dict[str, Array]:
    return {
        "num_input_tokens": np.array([sum(map(len, encodings))], dtype=np.uint32),
        "truncated": np.array([any(one.is_cut for one in encodings)]),
    }
