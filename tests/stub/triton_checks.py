"""Triton's checks of requests, before a model sees them, and of a model's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils
from wire import Array, Request

from generator.render.model_config import type_word


def refusal(config: Any, request: Request) -> str | None:
    """Triton's reason to refuse the request with status 400; None if it passes it on."""
    declared = {tensor.name: tensor for tensor in config.input}
    most = config.max_batch_size
    needed = {name for name, tensor in declared.items() if not tensor.optional}
    if unknown := request.tensors.keys() - declared.keys():
        return f"unexpected inference input '{min(unknown)}' for model '{config.name}'"
    if len(request.tensors) < len(needed):  # which ones are missing is not looked at
        return f"missing required input(s) {sorted(needed - request.tensors.keys())}"
    for name, array in request.tensors.items():
        got, wanted = pb_utils.Tensor(name, array).triton_dtype(), type_word(declared[name])
        if got != wanted:
            return f"inference input '{name}' data-type is '{got}', but {wanted} is expected"
        expected = [*([-1] if most else []), *declared[name].dims]
        if not _fits(expected, array.shape):
            return f"unexpected shape for input '{name}': expected {expected}, got {array.shape}"
    num_rows = {array.shape[0] for array in request.tensors.values()} if most else {1}
    if not (len(num_rows) == 1 and 0 < min(num_rows) <= max(most, 1)):
        return f"got rows {sorted(num_rows)}, expected 1 to {most}, as many of each input"
    return None


def output_faults(config: Any, outputs: Mapping[str, Array], num_rows: int | None) -> list[str]:
    """Faults of a model's outputs against its config; ``num_rows`` None: no batch."""
    faults = []
    declared = {output.name: output for output in config.output}
    for name, array in outputs.items():
        if name not in declared:
            faults.append(f"output {name} is not declared")
            continue
        wanted, got = type_word(declared[name]), pb_utils.Tensor(name, array).triton_dtype()
        if got != wanted:
            faults.append(f"output {name} is {got}, declared {wanted}")
        expected = [*([] if num_rows is None else [num_rows]), *declared[name].dims]
        if not _fits(expected, array.shape):
            faults.append(f"output {name} has shape {list(array.shape)}, declared {expected}")
    return faults


def _fits(expected: list[int], shape: tuple[int, ...]) -> bool:
    return len(expected) == len(shape) and all(
        size in (-1, got) for size, got in zip(expected, shape, strict=True)
    )
