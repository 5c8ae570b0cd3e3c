"""Encoders on ONNX Runtime: exported once, held against the model's own forward at every load."""

from __future__ import annotations

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.served_model import ServedModel

from ..options import EncoderOptions
from ..runners.padded_runner import padded_runners
from ..runners.runner import (
    Runner,
    RunnerSetup,
    random_encodings,
    reference_forward,
    select_runner,
    tolerance_of,
)
from .export import USE_TORCH
from .files import OnnxFiles
from .quantization import TOLERANCE as INT8_TOLERANCE
from .session import DTYPES, OnnxSession


def onnx_runner(setup: RunnerSetup, served: ServedModel, options: EncoderOptions) -> Runner:
    """The model on ONNX Runtime, in batches cut by length; exports it where that was not done.

    A file that was there and is broken, or no longer agrees with the model, is made anew.

    Raises:
        LoadError: it can't be exported or run here, or its outputs differ from the model's own by
            more than ``tolerance``.
    """
    _check(setup, options.quantization)
    files = OnnxFiles(setup, served, options.quantization)
    was_there = files.ensure()
    try:
        return _checked_runner(setup, files, options.quantization)
    except Exception as error:
        if not was_there:
            raise _refusal(error, options.quantization) from error
        log.warn(f"{served.public_name}: the ONNX file is made anew: {reason(error)}")
    files.rebuild()
    try:
        return _checked_runner(setup, files, options.quantization)
    except Exception as error:
        raise _refusal(error, options.quantization) from error


def tolerance(setup: RunnerSetup, quantization: str) -> float:
    """The largest difference from the model's own output, as ``largest_difference`` counts it."""
    return INT8_TOLERANCE if quantization == "int8" else tolerance_of(setup.model)


def _checked_runner(setup: RunnerSetup, files: OnnxFiles, quantization: str) -> Runner:
    try:
        size = reference_forward(setup, random_encodings(setup)[0]).shape[-1]
        session = OnnxSession(files.path, setup.device, setup.model.dtype, size)
    finally:
        files.close()
    name = "onnxruntime int8" if quantization == "int8" else "onnxruntime"
    where = session.providers[0].removesuffix("ExecutionProvider")
    candidates = padded_runners(lambda: session, f"{name} ({where})")
    if quantization == "int8":
        candidates = candidates[:1]  # what differs is not the padding's fault
    return select_runner(setup, candidates, tolerance(setup, quantization))


def _check(setup: RunnerSetup, quantization: str) -> None:
    """Raises LoadError for what the runtime does not compute."""
    dtype = setup.model.dtype
    allowed = [known for known in DTYPES if setup.device.type == "cuda" or known.itemsize == 4]
    if dtype not in allowed:
        names = " or ".join(str(known).removeprefix("torch.") for known in allowed)
        got = str(dtype).removeprefix("torch.")
        raise LoadError(
            f"engine: onnxruntime computes {names} on {setup.device.type}, the model is in {got}: "
            f"set dtype: {names.split()[0]}, or {USE_TORCH}"
        )
    if quantization == "int8" and setup.device.type != "cpu":
        raise LoadError(f"quantization: int8 is for a CPU, the model is on {setup.device}")


def _refusal(error: Exception, quantization: str) -> LoadError:
    """The operator's one line."""
    way = " with quantization: int8" if quantization == "int8" else ""
    return LoadError(f"engine: onnxruntime{way} can't serve it: {reason(error)}; {USE_TORCH}")
