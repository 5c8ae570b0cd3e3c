"""What Triton refuses before a model sees it, in the order and words of 24.10.

Read off a real server's answers; tests/scenarios runs the same requests against both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils
from tritonclient.grpc import model_config_pb2
from wire import Array, Request

_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape."
)


def refusal(config: Any, request: Request) -> str | None:
    """Why Triton refuses the request with status 400; None where it passes it on."""
    return next(_refusals(config, request), None)


def output_faults(config: Any, outputs: Mapping[str, Array], num_rows: int | None) -> list[str]:
    """What a model's outputs have that its config does not declare; ``num_rows`` None: no batch."""
    faults = []
    declared = {output.name: output for output in config.output}
    for name, array in outputs.items():
        if name not in declared:
            faults.append(f"output {name} is not declared")
            continue
        wanted, got = _type_name(declared[name]), pb_utils.Tensor(name, array).triton_dtype()
        if got != wanted:
            faults.append(f"output {name} is {got}, declared {wanted}")
        expected = [*([] if num_rows is None else [num_rows]), *declared[name].dims]
        if not _fits(expected, array.shape):
            faults.append(f"output {name} has shape {list(array.shape)}, declared {expected}")
    return faults


def _refusals(config: Any, request: Request) -> Iterator[str]:
    declared = {tensor.name: tensor for tensor in config.input}
    for name, value in request.parameters.items():
        if not isinstance(value, str | int | float):
            yield f"parameter '{name}' has invalid type"
    for name in request.tensors:
        if name not in declared:
            yield f"unexpected inference input '{name}' for model '{config.name}'"
    for name in request.outputs:
        if name not in {output.name for output in config.output}:
            yield f"unexpected inference output '{name}' for model '{config.name}'"
    num_required = sum(not tensor.optional for tensor in config.input)
    if len(request.tensors) < num_required:  # a count only: which ones are missing is not looked at
        missing = [tensor.name for tensor in config.input if not tensor.optional]
        range_text = f"between {num_required} and {len(declared)}"
        yield f"expected number of inputs {range_text}, missing required input(s) {missing}"
    for name, array in request.tensors.items():
        got, wanted = pb_utils.Tensor(name, array).triton_dtype(), _type_name(declared[name])
        if got != wanted:
            expects = f"model '{config.name}' expects '{wanted}'"
            yield f"inference input '{name}' data-type is '{got}', but {expects}"
    yield from _shape_refusals(config, declared, request.tensors)


def _shape_refusals(
    config: Any, declared: Mapping[str, Any], tensors: Mapping[str, Array]
) -> Iterator[str]:
    batched = config.max_batch_size > 0
    for name, array in tensors.items():
        expected = [*([-1] if batched else []), *declared[name].dims]
        if not _fits(expected, array.shape):
            note = _NOTE if batched else ""
            yield (
                f"unexpected shape for input '{name}' for model '{config.name}'. "
                f"Expected {expected}, got {list(array.shape)}. {note}"
            )
    if not batched:
        return
    if not tensors:  # possible where every input is optional
        yield "out of bounds index 0: request has 0 inputs"
    sizes = {name: array.shape[0] for name, array in tensors.items()}
    if len(set(sizes.values())) > 1:
        first = next(iter(sizes))
        yield f"input '{first}' batch size does not match other inputs for '{config.name}'"
    if max(sizes.values()) > config.max_batch_size:
        limit = config.max_batch_size
        yield f"inference request batch-size must be <= {limit} for '{config.name}'"
    if min(sizes.values()) < 1:
        yield f"expected elements for inference input of model '{config.name}', got 0"


def _fits(expected: list[int], shape: tuple[int, ...]) -> bool:
    return len(expected) == len(shape) and all(
        size in (-1, got) for size, got in zip(expected, shape, strict=True)
    )


def _type_name(tensor: Any) -> str:
    name: str = model_config_pb2.DataType.Name(tensor.data_type)
    return name
