"""The baseline: serves a text-generation pipeline as NVIDIA's Hugging Face tutorial does.

Written for this comparison, after the tutorial's method and nothing else: one ``transformers``
pipeline in float16 placed by ``device_map="auto"``, all prompts of a Triton batch padded into one
call, top-k sampling, one output length for every request. It takes no options from a request: the
tutorial's has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Generates for one padded batch at a time, until its longest answer is complete."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the pipeline; a relative model path starts at this model's folder."""
        parameters = json.loads(args["model_config"])["parameters"]
        model = parameters["huggingface_model"]["string_value"]
        folder = str(Path(args["model_repository"], model).resolve())
        self.output_length = int(parameters["max_output_length"]["string_value"])
        self.pipeline = transformers.pipeline(
            "text-generation",
            model=folder,
            tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
            dtype=torch.float16,
            device_map="auto",
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch; a request may itself hold several rows, ``(batch, 1)``."""
        rows_of = [prompts_of(request) for request in requests]
        texts = self.generate([row.decode("utf-8") for rows in rows_of for row in rows])
        responses = []
        for rows in rows_of:
            own, texts = texts[: len(rows)], texts[len(rows) :]
            output = np.array(own, dtype=np.object_).reshape(-1, 1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)]))
        return responses

    def generate(self, prompts: list[str]) -> list[str]:
        """Returns each prompt with its continuation, all of one length."""
        sequences = self.pipeline(
            prompts,
            batch_size=len(prompts),
            do_sample=True,
            top_k=10,
            num_return_sequences=1,
            max_new_tokens=self.output_length,
        )
        return [sequence[0]["generated_text"] for sequence in sequences]


def prompts_of(request: Any) -> Any:
    """The rows of a request: an array of bytes, ``(batch,)``."""
    tensor = pb_utils.get_input_tensor_by_name(request, "text_input")
    assert tensor is not None  # Triton lets no request without it through
    return tensor.as_numpy().reshape(-1)
