"""One ONNX file run by ONNX Runtime, on the device where the model's own tensors are.

Knows the runtime's execution providers; knows nothing of encodings or of where files come from.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_triton.runtime.errors import LoadError

from .export import OUTPUT, USE_TORCH

DTYPES: Mapping[torch.dtype, Any] = {torch.float32: np.float32, torch.float16: np.float16}
_TENSORRT_LIBRARY = "libnvinfer.so.10"

Provider = tuple[str, dict[str, str]]


class OnnxSession:
    """Called with int64 (batch, length) inputs by name, returns the output in their device's
    memory.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, size: int) -> None:
        """``size`` is the output's last dimension.

        Raises:
            LoadError: this build of the runtime can't compute on ``device``.
            Exception: of the runtime's own, where the file is broken.
        """
        import onnxruntime

        wanted = providers(device, dtype, path.parent)
        self._session = onnxruntime.InferenceSession(path, session_options(), providers=wanted)
        if device.type == "cuda" and self.providers == ["CPUExecutionProvider"]:
            raise LoadError(f"onnxruntime could not load its CUDA libraries; {USE_TORCH}")
        self._device, self._dtype, self._size = device, dtype, size
        self._rank = len(self._session.get_outputs()[0].shape)

    @property
    def providers(self) -> list[str]:
        """The execution providers that are in use, the preferred one first."""
        return list(self._session.get_providers())

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


def session_options() -> Any:
    """As many threads as torch has, none of which keeps a core busy between two runs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.enable_mem_pattern = False  # one is kept for every shape that ever came
    options.log_severity_level = 3
    return options


def providers(device: torch.device, dtype: torch.dtype, folder: Path) -> list[Provider]:
    """What to compute with on ``device``, the preferred one first; TensorRT keeps what it builds in
    ``folder``. Raises LoadError where the runtime has nothing for it.
    """
    import onnxruntime

    cpu: Provider = ("CPUExecutionProvider", {})
    if device.type == "cpu":
        return [cpu]
    available = onnxruntime.get_available_providers()
    if "CUDAExecutionProvider" not in available:
        raise LoadError(
            f"the model is on {device}, for which this onnxruntime has nothing: install "
            f"onnxruntime-gpu in its place, or {USE_TORCH}"
        )
    index = str(device.index or 0)
    found: list[Provider] = [("CUDAExecutionProvider", {"device_id": index}), cpu]
    if "TensorrtExecutionProvider" in available and _has_tensorrt():
        options = {
            "device_id": index,
            "trt_fp16_enable": str(dtype == torch.float16),
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": str(folder),
        }
        found.insert(0, ("TensorrtExecutionProvider", options))
    return found


def _has_tensorrt() -> bool:
    try:
        ctypes.CDLL(_TENSORRT_LIBRARY)
    except OSError:
        return False
    return True
