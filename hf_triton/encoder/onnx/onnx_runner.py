"""Runs encoders on ONNX Runtime: exports once, compares with the model's own forward at every
load.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.weights.served_model import ServedModel

from ..options import EncoderOptions
from ..runners.encoder_runner import (
    Runner,
    RunnerSetup,
    random_encodings,
    reference_forward,
    select_runner,
)
from ..runners.padded_runner import padded_runners
from .export import OUTPUT, USE_TORCH
from .files import OnnxFiles

# The largest difference of 8-bit weights from the model's own output, as ``largest_difference``
# counts it. ONNX Runtime quantizes activations as it runs, by one scale for the whole batch: an
# answer depends a little on the other texts in its batch.
INT8_TOLERANCE = 0.1

DTYPES: Mapping[torch.dtype, Any] = {torch.float32: np.float32, torch.float16: np.float16}

Provider = tuple[str, dict[str, str]]


def onnx_runner(setup: RunnerSetup, served: ServedModel, options: EncoderOptions) -> Runner:
    """The model on ONNX Runtime, in batches cut by length; exports it once. A file that is broken,
    or no longer agrees with the model, is made anew. Raises LoadError.
    """
    _check(setup, options.quantization)
    files = OnnxFiles(setup, served, options.quantization)
    was_there = False
    while True:
        was_there = files.ensure(anew=was_there)
        try:
            return _checked_runner(setup, files, options.quantization)
        except Exception as error:
            if not was_there:
                way = " with quantization: int8" if options.quantization == "int8" else ""
                line = f"engine: onnxruntime{way} can't serve it: {reason(error)}; {USE_TORCH}"
                raise LoadError(line) from error
            log.warn(f"{served.public_name}: the ONNX file is exported again: {reason(error)}")


def _checked_runner(setup: RunnerSetup, files: OnnxFiles, quantization: str) -> Runner:
    try:
        size = reference_forward(setup, random_encodings(setup)[0]).shape[-1]
        session = OnnxSession(files.path, setup.device, setup.model.dtype, size)
    finally:
        files.close()
    name = "onnxruntime int8" if quantization == "int8" else "onnxruntime"
    where = session.providers[0].removesuffix("ExecutionProvider")
    candidates = padded_runners(session, f"{name} ({where})")
    if quantization == "int8":
        # Padding does not explain the difference.
        return select_runner(setup, candidates[:1], INT8_TOLERANCE)
    return select_runner(setup, candidates)


def _check(setup: RunnerSetup, quantization: str) -> None:
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


class OnnxSession:
    """Computes int64 (batch, length) inputs, by name; the output is in their device's memory."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, size: int) -> None:
        """``size`` is the output's last dimension. Raises LoadError where this build of the runtime
        can't compute on ``device``, and the runtime's own where the file is broken.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.enable_mem_pattern = False  # ONNX Runtime would keep memory for every shape
        options.log_severity_level = 3
        wanted = providers(device)
        self._session = onnxruntime.InferenceSession(path, options, providers=wanted)
        self.providers: list[str] = self._session.get_providers()
        if device.type == "cuda" and self.providers == ["CPUExecutionProvider"]:
            raise LoadError(f"onnxruntime could not load its CUDA libraries; {USE_TORCH}")
        self._device, self._dtype, self._size = device, dtype, size
        self._rank = len(self._session.get_outputs()[0].shape)

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        batch, length = inputs["input_ids"].shape
        shape = (batch, length, self._size) if self._rank == 3 else (batch, self._size)
        output = torch.empty(shape, dtype=self._dtype, device=self._device)
        binding = self._session.io_binding()
        held = {name: tensor.contiguous() for name, tensor in inputs.items()}
        for name, tensor in held.items():
            binding.bind_input(name, *self._place(), np.int64, [*tensor.shape], tensor.data_ptr())
        kind = DTYPES[self._dtype]
        binding.bind_output(OUTPUT, *self._place(), kind, [*shape], output.data_ptr())
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the runtime has its own
        self._session.run_with_iobinding(binding)
        return output

    def _place(self) -> tuple[str, int]:
        return self._device.type, self._device.index or 0


def providers(device: torch.device) -> list[Provider]:
    import onnxruntime

    cpu: Provider = ("CPUExecutionProvider", {})
    if device.type == "cpu":
        return [cpu]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise LoadError(
            f"the model is on {device}, which this onnxruntime does not support: install "
            f"onnxruntime-gpu in its place, or {USE_TORCH}"
        )
    return [("CUDAExecutionProvider", {"device_id": str(device.index or 0)}), cpu]
