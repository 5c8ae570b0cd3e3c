"""Encoders compiled by torch: ``torch.compile`` of the padded forward, for any batch and length.

On a CPU the compiler is a C++ one, and the linear layers are prepacked as in the torch engine: they
stay what they are, and what lies between them becomes few loops.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import itertools
import locale
import os
import shutil
from weakref import WeakValueDictionary

import torch
from torch import nn

from hf_triton.runtime.devices.linear_layouts import PrepackedLinear
from hf_triton.runtime.errors import LoadError

from ..onnx.export import USE_TORCH, cause, example_inputs, quiet
from ..runners.padded_runner import Forward, padded_runners
from ..runners.runner import (
    Runner,
    RunnerSetup,
    call_options,
    output_of,
    random_encodings,
    select_runner,
)

# The operator is given a number: its arguments can't be modules.
_LAYERS: WeakValueDictionary[int, PrepackedLinear] = WeakValueDictionary()
_NUMBERS = itertools.count()

# torch.compile specializes for a batch of 1 and may do so for some lengths. Beyond so many compiled
# versions a batch is computed uncompiled.
MAX_FORMS = 8
_SHORTEST = 2  # torch.compile specializes sizes of 1: it would compile a version for that alone
_LONGEST_WARM_UP = 512


def compiled_runner(setup: RunnerSetup) -> Runner:
    """Compiled, and warmed up for one text and several, short and long. Raises LoadError without a
    compiler, where it fails, and where the outputs differ from the model's own.
    """
    command = os.environ.get("CXX", "g++")
    if setup.device.type == "cpu" and shutil.which(command) is None:
        raise LoadError(
            f"engine: torch-compile needs a C++ compiler on a CPU, and there is no {command}: "
            f"install one (Debian: apt-get install g++), or {USE_TORCH}"
        )
    _read_as_utf8()
    forward = functools.partial(compiled_forward, setup)
    try:
        with quiet():
            runner = select_runner(setup, padded_runners(forward, "torch.compile"))
            longest = min(setup.max_length, _LONGEST_WARM_UP)
            for lengths in ([longest], [longest] * 2, [_SHORTEST], [_SHORTEST] * 3):
                runner.forward(random_encodings(setup, lengths))
    except LoadError as error:
        raise LoadError(f"engine: torch-compile can't serve it: {error}; {USE_TORCH}") from error
    return runner


def compiled_forward(setup: RunnerSetup) -> Forward:
    """(batch, length) inputs -> the model's output. Raises LoadError where compiling fails."""
    if setup.device.type == "cpu":
        make_opaque(setup.model)
    options = call_options(setup.model)

    def run(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return output_of(setup, setup.model(**inputs, **options))

    try:
        torch._dynamo.config.recompile_limit = MAX_FORMS  # noqa: SLF001
        compiled = torch.compile(run, dynamic=True)
        with torch.inference_mode():
            compiled(example_inputs(setup))
    except Exception as error:
        # Compiling can fail in every way that tracing, and a compiler, can.
        raise LoadError(f"torch.compile failed: {cause(error)}") from error

    def forward(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        if inputs["input_ids"].shape[1] < _SHORTEST:
            return run(inputs)
        return compiled(inputs)

    return forward


def _read_as_utf8() -> None:
    """Sets the locale's encoding to UTF-8: Triton's embedded Python starts in the C locale, in
    which torch can't read its kernel templates.
    """
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        with contextlib.suppress(locale.Error):  # without such a locale compiling reports the error
            locale.setlocale(locale.LC_CTYPE, "C.UTF-8")


@torch.library.custom_op("hf_triton::prepacked_linear", mutates_args=())
def _linear(x: torch.Tensor, number: int, out_features: int) -> torch.Tensor:
    """(..., in_features) -> (..., out_features)."""
    y: torch.Tensor = _LAYERS[number](x)
    return y


@_linear.register_fake
def _shape(x: torch.Tensor, number: int, out_features: int) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


class OpaqueLinear(nn.Module):
    """A PrepackedLinear called through that operator."""

    def __init__(self, layer: PrepackedLinear) -> None:
        super().__init__()
        self.layer = layer
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self._number = next(_NUMBERS)
        _LAYERS[self._number] = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _linear(x, self._number, self.out_features)
        return y

    @property
    def weight(self) -> torch.Tensor:
        return self.layer.weight


def make_opaque(model: nn.Module) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype in (torch.float32, torch.bfloat16):
                with contextlib.suppress(AttributeError, RuntimeError):
                    setattr(parent, name, OpaqueLinear(PrepackedLinear(child.weight, child.bias)))
