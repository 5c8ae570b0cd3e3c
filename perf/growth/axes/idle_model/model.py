"""Answers with the text that it was sent."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        text = pb_utils.get_input_tensor_by_name(request, "text_input")
        assert text is not None
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.as_numpy())])
