"""A request as the runtime sees it: named arrays and a JSON text of parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_triton.runtime.request.request_parameters import read_parameters
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


def fields(
    tensors: Mapping[str, list[Any]], parameters: Mapping[str, Any], *, batched: bool = False
) -> RequestFields:
    """``tensors`` are lists, of rows where ``batched``; their types are the contract's."""
    arrays = {
        name: np.array(values, dtype=_TYPES.get(name, np.bool_)) for name, values in tensors.items()
    }
    return RequestFields(arrays, read_parameters(json.dumps(parameters)), batched=batched)


def parse_request(given: RequestFields, reader: PromptReader) -> GenerationRequest:
    """Reads a whole request at once."""
    return check_request(given, reader).tokenised()
