"""The tensors of an ensemble and of its steps, made of those that its task has in one model.

The tokenizer and the postprocessing step take a client's batch as it is, with its batch dimension
as one of their own: a row can be several rows of tokens (a long context's windows, a text with each
of its labels), and Triton would hold both to the same number of rows. Knows no templates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from generator.render.model_config import type_word
from generator.spec.model_spec import Ensemble

# Where Triton's own backends look for the model, in the version's folder.
NATIVE_FILES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan"}
# What models that hf-triton exports call theirs (hf_triton/encoder/onnx/export.py).
_COMPUTED = "output"
# By a task's OUTPUT, its sizes for each row.
_SIZES = {"hidden": (-1, -1), "tokens": (-1, -1), "sequences": (-1,)}


@dataclass(frozen=True)
class Tensor:
    """A tensor in a config.pbtxt; ``dims`` without the batch dimension that Triton adds."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    label_filename: str = ""


@dataclass(frozen=True)
class EnsembleTensors:
    """``inputs`` and ``outputs`` are the ensemble's; the model step takes ``tokens``, answers
    ``computed`` and has ``model_max_batch_size``, the other two steps have 0.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    tokens: tuple[Tensor, ...]
    computed: Tensor
    max_batch_size: int
    model_max_batch_size: int
    native_file: str | None

    @property
    def step_inputs(self) -> tuple[Tensor, ...]:
        """The ensemble's inputs, as its first and last step take them."""
        return tuple(map(self._with_rows, self.inputs))

    @property
    def postprocessing_inputs(self) -> tuple[Tensor, ...]:
        """The ensemble's inputs, and what the model step made of them."""
        return (*self.step_inputs, self.computed_of_rows)

    @property
    def step_outputs(self) -> tuple[Tensor, ...]:
        """The ensemble's outputs, as its last step answers them."""
        return tuple(map(self._with_rows, self.outputs))

    @property
    def tokens_of_rows(self) -> tuple[Tensor, ...]:
        """The tokenizer step's outputs, ``(rows, longest row)``."""
        return tuple(replace(tensor, dims=(-1, -1)) for tensor in self.tokens)

    @property
    def computed_of_rows(self) -> Tensor:
        """The postprocessing step's input; its name is none of the task's tensors."""
        dims = self.computed.dims
        rows = dims if self.model_max_batch_size == 0 else (-1, *dims)
        return replace(self.computed, name="model_output", dims=rows)

    def _with_rows(self, tensor: Tensor) -> Tensor:
        dims = (-1, *tensor.dims) if self.max_batch_size else tensor.dims
        return replace(tensor, dims=dims, label_filename="")


def ensemble_tensors(single: Any, ensemble: Ensemble, output: str) -> EnsembleTensors:
    """``single`` is the ModelConfig of the task as a single model, ``output`` the task's OUTPUT."""
    largest = ensemble.model_max_batch_size if ensemble.is_native else 0
    rows = () if largest else (-1,)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] * ensemble.token_type_ids)]
    return EnsembleTensors(
        inputs=tuple(_tensors(single.input)),
        outputs=tuple(_tensors(single.output)),
        tokens=tuple(Tensor(name, "TYPE_INT64", (*rows, -1)) for name in names),
        computed=Tensor(_COMPUTED, "TYPE_FP32", (*rows, *_SIZES[output])),
        max_batch_size=single.max_batch_size,
        model_max_batch_size=largest,
        native_file=NATIVE_FILES.get(ensemble.backend),
    )


def _tensors(declared: Iterable[Any]) -> Iterable[Tensor]:
    for tensor in declared:
        optional = getattr(tensor, "optional", False)
        labels = getattr(tensor, "label_filename", "")
        yield Tensor(tensor.name, type_word(tensor), tuple(tensor.dims), optional, labels)
