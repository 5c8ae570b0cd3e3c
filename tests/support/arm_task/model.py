"""Answers with the text it was sent, over all that real tasks use of hf_triton, without torch.

A text of several words is streamed word by word to whoever takes that; ``bad`` is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.link.listener import ForwardedRequest
from hf_triton.runtime.request.plain_request import (
    DirectRequest,
    PlainRequest,
    RequestLike,
    read_plain,
)
from hf_triton.runtime.request.responder import Responder, TritonResponder, strings
from hf_triton.runtime.weights.served_model import read_served_model


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        served = read_served_model(Path(args["model_repository"]), args["model_version"])
        self.options, self.decoupled = served.options, served.decoupled
        self.closing = threading.Event()
        self.intake = Intake(served, args, pb_utils)
        self.intake.open(self._forwarded)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self.intake.receive(
                DirectRequest(request),
                request.requested_output_names(),
                TritonResponder(request, pb_utils),
                partial(self._take, may_stream=self.decoupled),
                may_stream=self.decoupled,
            )

    def finalize(self) -> None:
        self.intake.drain(5.0)
        self.closing.set()
        self.intake.close()

    def _forwarded(self, request: ForwardedRequest) -> None:
        self.intake.receive(
            request,
            request.outputs,
            request.responder,
            partial(self._take, may_stream=request.may_stream),
            may_stream=request.may_stream,
            is_routed=request.is_routed,
        )

    def _take(
        self, request: RequestLike, listed: Iterable[str], responder: Responder, *, may_stream: bool
    ) -> None:
        plain = read_plain(request, ["text_input"])
        answer = partial(self._answer, plain, responder, may_stream=may_stream)
        threading.Thread(target=answer, daemon=True).start()

    def _answer(self, plain: PlainRequest, responder: Responder, *, may_stream: bool) -> None:
        (text,) = (item.decode() for item in plain.inputs["text_input"].reshape(-1).tolist())
        pieces = text.split() if may_stream else [text]
        if text == "bad":
            responder.fail(RequestError(f"text_input: {self.options['answers']}got bad"))
            return
        for number, piece in enumerate(pieces, 1):
            self.closing.wait(self.options["answer_s"])
            if responder.is_cancelled():
                responder.fail(RequestError("cancelled"))
                return
            answer = strings([f"{self.options['answers']}{piece}"])
            responder.send({"text_output": answer}, final=number == len(pieces))
