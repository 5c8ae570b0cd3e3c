"""The options that every encoder task has; each task's ``Options`` extends them.

Standard library only: the generator loads this file to check models.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hf_triton.runtime.option import option, step_watchdog, unload_grace


@dataclass(frozen=True)
class EncoderOptions:
    OUTPUT: ClassVar[str]  # of its model: an OutputKind of task.py
    TASK: ClassVar[str]  # its class, by the module of its folder: filling:FillMask
    LOAD, SERVE = "encoder.ensemble.steps:load", "encoder.reception:Reception"
    # These, and OUTPUT, are read by generator/spec/task_folders.py.
    PACKAGES = ("encoder",)
    DETERMINISTIC = QUANTIZES = True

    engine: Literal["torch", "onnxruntime"] = option(
        "torch",
        "torch: compiled loops and prepacked weights on a CPU, CUDA graphs on a GPU; onnxruntime: "
        "exported to ONNX, once. hf-triton optimize measures which is faster on this machine",
    )
    quantization: Literal["none", "int8"] = option(
        "none",
        "int8: weights of linear layers as 8-bit integers, for onnxruntime on a CPU; "
        "engine torch has the model's own key quantization",
    )
    max_length: int | None = option(
        None,
        "longest input; default: the model's own limit, 8192 where it has none",
        unit="tokens",
        least=4,
    )
    truncation: bool = option(
        False,
        "true cuts a longer input to max_length, false refuses it; a request's "
        "truncate overrides this",
    )
    max_num_batched_tokens: int = option(
        1024, "most tokens computed in one step, over all requests in it", unit="tokens", least=16
    )
    max_queue_size: int = option(
        1024,
        "requests that are computed or wait; more are refused with 503",
        unit="requests",
        least=1,
    )
    num_tokenizer_threads: int = option(
        2,
        "threads that tokenise; one of them is kept free for short texts",
        unit="threads",
        least=2,
        most=64,
    )
    watchdog_s: float = step_watchdog()
    unload_grace_s: float = unload_grace()

    def problems(self) -> list[tuple[str, str]]:
        """Conflicts between two fields, each as (field, message)."""
        found = []
        if self.quantization != "none" and self.engine != "onnxruntime":
            message = f"got {self.quantization}, expected none with engine {self.engine}"
            own = "this option is onnxruntime's, torch has the model's own key quantization"
            found.append(("quantization", f"{message}: {own}"))
        return found
