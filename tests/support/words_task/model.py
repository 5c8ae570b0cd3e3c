"""Answers with the text it was sent, and how many requests it has computed, over all that real
tasks use of hf_triton, without torch. A text of several words is streamed word by word to whoever
takes that.
"""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.request import Request, take_each
from hf_triton.runtime.request.responder import strings
from hf_triton.runtime.weights.served_model import read_served_model


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        served = read_served_model(Path(args["model_repository"]), args["model_version"])
        self.options, self.decoupled = served.options, served.decoupled
        self.closing, self.numbers = threading.Event(), count(1)
        self.intake = Intake(served, args, pb_utils)
        self.intake.open(self._take)

    def execute(self, requests: list[Any]) -> None:
        take_each(requests, pb_utils, self.intake.receive, may_stream=self.decoupled)

    def finalize(self) -> None:
        self.intake.drain(5.0)
        self.closing.set()
        self.intake.close()

    def _take(self, request: Request) -> None:
        threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def _answer(self, request: Request) -> None:
        responder = request.responder
        (text,) = (item.decode() for item in request.inputs["text_input"].reshape(-1).tolist())
        pieces = text.split() if request.may_stream else [text]
        told = {"label": strings(["echo"]), "num_computed": np.array([next(self.numbers)], "u4")}
        for number, piece in enumerate(pieces, 1):
            self.closing.wait(self.options["answer_s"])
            if responder.is_cancelled():
                responder.fail(RequestError("cancelled"))
                return
            answer = {"text_output": strings([f"{self.options['answers']}{piece}"])}
            responder.send({**answer, **told}, final=number == len(pieces))
