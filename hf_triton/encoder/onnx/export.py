"""A model's forward as an ONNX file, by torch's own exporter (``torch.onnx.export(dynamo=True)``).

Batch and length stay open. Knows neither where files are kept nor who runs them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from hf_triton.runtime.errors import LoadError, reason

from ..runners.encoder_runner import RunnerSetup, call_options, output_of, random_encodings

OUTPUT = "output"
# The first with an operator for GELU.
OPSET = 20
# Neither may be 1, nor the two equal: torch.export would specialize a size of 1 and tie equal ones.
_EXAMPLE_SHAPE = (3, 19)
PACKAGES = ("onnx>=1.20,<2", "onnxscript>=0.7,<1", "onnxruntime>=1.23,<2")
USE_TORCH = "use engine: torch"


def export(setup: RunnerSetup, path: Path) -> None:
    """Writes ``path``, and the weights to ``path.data`` beside it. Inputs are int64 (batch,
    length): ``input_ids``, ``attention_mask`` and, where the model takes them, ``token_type_ids``;
    the output is (batch, length, size), or (batch, size), in the model's dtype. Raises LoadError.
    """
    rows, length = _EXAMPLE_SHAPE
    encodings = random_encodings(setup, [min(length, setup.max_length)] * rows)
    ids = torch.tensor([encoding.input_ids for encoding in encodings], device=setup.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if setup.has_token_types:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    names = list(inputs)
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                _Outputs(setup, names).eval(),
                tuple(inputs.values()),
                input_names=names,
                output_names=[OUTPUT],
                dynamic_shapes=(tuple(shape for _ in names),),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(path, external_data=True)
    except ImportError as error:
        raise missing_packages(error) from error
    except OSError:
        raise  # the disk's fault, not the model's
    except Exception as error:
        # Exporting can fail in every way that tracing and converting can. The first error of the
        # chain tells: exporters wrap it in advice to their developers.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        why = reason(LoadError(str(cause).strip().split("\n\n")[0]))
        line = f"the export to ONNX failed: {type(cause).__name__}: {why}; {USE_TORCH}"
        raise LoadError(line) from error


def missing_packages(error: ImportError) -> LoadError:
    """An error line for the operator where the extra is not installed."""
    return LoadError(
        f"engine: onnxruntime needs packages that are not installed ({reason(error)}): "
        f"pip install {' '.join(map(repr, PACKAGES))}; or use engine: torch"
    )


class _Outputs(nn.Module):
    """Wraps the model: takes its inputs in order and returns the one wanted tensor."""

    def __init__(self, setup: RunnerSetup, names: list[str]) -> None:
        super().__init__()
        self.model = setup.model
        self._setup, self._names = setup, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        inputs = dict(zip(self._names, tensors, strict=True))
        return output_of(self._setup, self.model(**inputs, **call_options(self.model)))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the exporter's messages; errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
