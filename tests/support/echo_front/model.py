"""The front of an echo model: answers by itself, so that it needs no engine once it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        values = json.loads(Path(__file__).with_name("model.json").read_text())
        pb_utils.Logger.log_info(f"loading {values['name']} before {values['engine']}")

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "text_input")
        assert text is not None
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.as_numpy())])
