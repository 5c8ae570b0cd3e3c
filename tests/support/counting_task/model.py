"""Answers with the text and how many requests it has computed; refuses the text ``fail``.

As small as a model behind an Intake can be: no torch, loads in a fraction of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.errors import LoadError, RequestError
from hf_triton.runtime.request.plain_request import DirectRequest, RequestLike
from hf_triton.runtime.request.responder import Responder, TritonResponder, strings
from hf_triton.runtime.request.tensors import RequestFields
from hf_triton.runtime.weights.served_model import read_served_model


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        try:
            served = read_served_model(Path(args["model_repository"]), args["model_version"])
            self.intake = Intake(served, args, pb_utils)
        except LoadError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self.num_computed = 0
        self.lock = threading.Lock()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            direct = DirectRequest(request)
            responder = TritonResponder(request, pb_utils)
            self.intake.receive(direct, request.requested_output_names(), responder, self._take)

    def finalize(self) -> None:
        self.intake.drain(5)
        self.intake.close()

    def _take(self, request: RequestLike, listed: Iterable[str], responder: Responder) -> None:
        fields = RequestFields(request, batched=False)
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
            responder.fail(RequestError("text_input: got what it refuses"))
        else:
            wanted = {name: outputs[name] for name in outputs if name in set(listed)}
            responder.send(wanted, final=True)
