"""Stands in for the model.py of NVIDIA's vLLM backend: reads model.json where that does, looks for
the weights from the same folder, and answers with the prompt, word by word.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers as many words as ``max_tokens`` of the sampling parameters."""

    def initialize(self, args: dict[str, str]) -> None:
        """Raises ValueError where the weights are not at the path that model.json says."""
        arguments = json.loads(_folder(args).joinpath("model.json").read_text())
        if not Path(arguments["model"], "config.json").is_file():
            raise ValueError(f"no model in {arguments['model']}")

    def execute(self, requests: list[Any]) -> None:
        """One response, or one for each word."""
        for request in requests:
            words = _text(request, "text_input").split()
            words = words[: json.loads(_text(request, "sampling_parameters"))["max_tokens"]]
            stream = pb_utils.get_input_tensor_by_name(request, "stream")
            streams = stream is not None and bool(stream.as_numpy()[0])
            _send(request.get_response_sender(), words if streams else [" ".join(words)])


def _text(request: Any, name: str) -> str:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    assert tensor is not None, name
    return str(tensor.as_numpy()[0].decode())


def _folder(args: dict[str, str]) -> Path:
    return Path(args["model_repository"], args["model_version"])


def _send(sender: Any, texts: list[str]) -> None:
    for number, text in enumerate(texts, 1):
        tensor = pb_utils.Tensor("text_output", np.array([text], dtype=object))
        is_last = number == len(texts)
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        sender.send(pb_utils.InferenceResponse([tensor]), flags=flags)
