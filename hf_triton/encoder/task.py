"""The interface of a task: it reads a request into encodings, and turns the model's outputs into
the response's.

A task knows nothing of batches, threads or Triton.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy.typing as npt
import torch

from hf_triton.runtime.request.tensors import RequestFields

from .sentence_transformers.reading import Kind, SentenceFiles
from .texts.encoding import Encoding
from .texts.tokenization import Tokenization

Array = npt.NDArray[Any]
# "hidden": the last hidden state of each token, (tokens, hidden). "tokens": the head's output of
# each wanted token, (tokens, labels or vocab). "sequences": the head's output of each encoding,
# (encodings, labels).
OutputKind = Literal["hidden", "tokens", "sequences"]


@dataclass(frozen=True)
class Prepared:
    """A request that can be computed.

    ``answer`` is given what ``reduce`` made of each encoding, float32 arrays in the order of
    ``encodings``, and returns outputs by name, of which the request's own are sent; it runs on the
    thread that sends.
    """

    encodings: Sequence[Encoding]
    answer: Callable[[list[Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class TaskSetup:
    """What a task is made of: its own ``Options``, transformers' configuration of the model, and
    what sentence-transformers' files say. ``batched`` where max_batch_size is above 0.
    """

    options: Any
    config: Any
    saved: SentenceFiles
    tokenization: Tokenization
    batched: bool


class EncoderTask(ABC):
    """Made once at load; raises LoadError where the model can't do this task."""

    auto_class: ClassVar[str]  # of transformers, such as "AutoModelForSequenceClassification"
    output: ClassVar[OutputKind]
    saved_as: ClassVar[Kind | None] = None  # sentence-transformers' class for its models

    def __init__(self, setup: TaskSetup) -> None:
        self.setup = setup

    @classmethod
    def auto_class_of(cls, config: Any) -> str:
        """The class for a model with this configuration, where that is not the same for all."""
        return cls.auto_class

    @abstractmethod
    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        """Reads and tokenises one request; runs on tokenizer threads, several at once. ``wanted``
        are the outputs that it lists, all where it lists none. Raises RequestError.
        """

    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> Sequence[torch.Tensor] | torch.Tensor:
        """What is kept of each encoding's output, (num_outputs, size), or (size,) where the kind is
        "sequences"; as the rows of one tensor where all are alike. Runs on the engine's thread and
        the model's device.
        """
        return outputs
