"""A request as the runtime sees it: named arrays and a JSON text of parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.text_generation.request.parsing import GenerationRequest, PromptReader, check_request
from hf_triton.text_generation.sequence.request_options import OPTIONS

_ARRAYS = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "STRING": np.object_}
_TYPES: dict[str, Any] = {
    "input_ids": np.int32,
    **dict.fromkeys(
        ("text_input", "messages", "tools", "chat_template_kwargs", "lora_name"), np.object_
    ),
    **{name: _ARRAYS.get(option.tensor, np.bool_) for name, option in OPTIONS.items()},
}


@dataclass(frozen=True)
class _Tensor:
    array: npt.NDArray[Any]

    def as_numpy(self) -> npt.NDArray[Any]:
        return self.array


@dataclass(frozen=True)
class _Request:
    tensors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> str:
        return json.dumps(self.given) if self.given else ""


def fields(
    tensors: Mapping[str, list[Any]], parameters: Mapping[str, Any], *, batched: bool = False
) -> RequestFields:
    """``tensors`` are lists, of rows where ``batched``; their types are the contract's."""
    arrays = {
        name: np.array(values, dtype=_TYPES.get(name, np.bool_)) for name, values in tensors.items()
    }
    return RequestFields(_Request(arrays, parameters), _get_tensor, batched=batched)


def _get_tensor(request: _Request, name: str) -> _Tensor | None:
    return _Tensor(request.tensors[name]) if name in request.tensors else None


def parse_request(given: RequestFields, reader: PromptReader) -> GenerationRequest:
    """Reads a whole request at once."""
    return check_request(given, reader).tokenised()
