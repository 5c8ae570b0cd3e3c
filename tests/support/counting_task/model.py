"""Answers with the text and how many requests it has computed; refuses the text ``fail``.

As small as a model behind an Intake can be: no torch, loads in a fraction of a second.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.request import Request, take_each
from hf_triton.runtime.request.responder import strings
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.runtime.weights.served_model import read_served_model


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        try:
            served = read_served_model(Path(args["model_repository"]), args["model_version"])
            self.intake = Intake(served, args, pb_utils)
        except LoadError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self.intake.open(self._take)
        self.num_computed = 0
        self.lock = threading.Lock()

    def execute(self, requests: list[Any]) -> None:
        take_each(requests, pb_utils, self.intake.receive)

    def finalize(self) -> None:
        self.intake.drain(5)
        self.intake.close()

    def _take(self, request: Request) -> None:
        fields = RequestFields(request.inputs, request.parameters, batched=False)
        (text,) = fields.optional_texts("text_input")
        assert text is not None
        with self.lock:
            self.num_computed += 1
            outputs = {
                "text_output": strings([text]),
                "label": strings(["echo"]),
                "num_computed": np.array([self.num_computed], dtype=np.uint32),
            }
        if text == "fail":
            raise RequestError("text_input: got what it refuses")
        request.responder.send(outputs, final=True)
