"""Prepares the engines that ``hf-triton optimize`` compares, as a served model does, and checks
them against plain PyTorch. Measures nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.served_model import ServedModel

from ..loading import torch_runner
from ..onnx.runner import INT8_TOLERANCE
from ..options import EncoderOptions
from ..runners.padded_runner import PaddedRunner
from ..runners.runner import (
    Runner,
    RunnerSetup,
    largest_difference,
    random_encodings,
    reference_forward,
    tolerance_of,
)

PLAIN = "plain PyTorch"
# Name on the command line -> the options of models.yaml.
ENGINES: dict[str, dict[str, str]] = {
    "torch": {"engine": "torch"},
    "torch-compile": {"engine": "torch-compile"},
    "onnxruntime": {"engine": "onnxruntime"},
    "onnxruntime-int8": {"engine": "onnxruntime", "quantization": "int8"},
}
_TRIAL_LENGTHS = (5, 17, 9, 17, 3, 30)


@dataclass
class Candidate:
    """An engine that was tried. ``runner`` is None if it was refused; ``refusal`` is the reason."""

    name: str
    runner: Runner | None = None
    refusal: str = ""
    difference: float | None = None
    tolerance: float | None = None
    seconds_to_ready: float = 0.0
    options: dict[str, str] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """How it computes, such as ``packed tokens``."""
        return "" if self.runner is None else self.runner.name


def candidates(
    setup: RunnerSetup,
    served: ServedModel,
    options: EncoderOptions,
    names: Sequence[str],
    tolerance: float | None,
    lengths: Sequence[int],
) -> Iterator[Candidate]:
    """Yields plain PyTorch, then each engine of ``names``, prepared on demand. ``tolerance``
    replaces each engine's own; ``lengths`` are checked in addition to the defaults.
    """
    plain = PaddedRunner(setup)
    plain.name = "the model as transformers loads it, padded batches"
    yield Candidate(PLAIN, plain, difference=0.0)
    scene = random_encodings(setup, [*_TRIAL_LENGTHS, *lengths])
    expected = [reference_forward(setup, encoding) for encoding in scene]
    for name in names:
        one = Candidate(name, options=ENGINES[name])
        own = INT8_TOLERANCE if name.endswith("int8") else tolerance_of(setup.model)
        one.tolerance = own if tolerance is None else tolerance
        began_s = time.monotonic()
        try:
            runner = _make_runner(name, setup, served, options)
            one.difference = largest_difference(runner.forward(scene), expected)
            if one.difference <= one.tolerance:
                one.runner = runner
            else:
                one.refusal = (
                    f"differs from plain PyTorch by {one.difference:.2g}, allowed is "
                    f"{one.tolerance:g}"
                )
        except Exception as error:
            # Any failure refuses this engine; the others are still compared.
            kind = "" if isinstance(error, LoadError) else f"{type(error).__name__}: "
            one.refusal = f"{kind}{reason(error)}"
        one.seconds_to_ready = time.monotonic() - began_s
        yield one


def _make_runner(
    name: str, setup: RunnerSetup, served: ServedModel, options: EncoderOptions
) -> Runner:
    """The engine's runner; engines that change the model get a copy."""
    if served.quantization is not None and name != "torch":
        raise LoadError("quantization: computes whole weights; torch computes quantized ones")
    changes: dict[str, Any] = {"quantization": "none", **ENGINES[name]}
    chosen = dataclasses.replace(options, **changes)
    if name.startswith("onnxruntime"):
        from ..onnx.runner import onnx_runner

        return onnx_runner(setup, served, chosen)
    own = dataclasses.replace(setup, model=copy.deepcopy(setup.model))
    if name == "torch-compile":
        from ..compiled.runner import compiled_runner

        return compiled_runner(own)
    return torch_runner(own, served, chosen)
