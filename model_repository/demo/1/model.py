"""Triton's side of text generation: reads requests, hands them to the engine, answers each when it
is done.

``execute`` returns at once: every request's response sender goes with its sequences to the engine,
whose thread answers later. So requests join a running batch on an ordinary (not decoupled) model.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from hf_runtime import device, log
from hf_runtime.errors import LoadError, RuntimeModelError, place, reason
from hf_runtime.served_model import read_served_model
from hf_runtime.tensors import RequestFields

from .detokenizer import Detokenizer
from .loading import LoadedModel, load_engine
from .request import Generation, GenerationRequest, parse_request
from .sequence import Completion, Sequence

_OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


class TritonPythonModel:
    """One instance of a served model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads weights, tokenizer and engine; raises one readable line where that fails."""
        # Parallel work belongs to the engine's thread alone, see engine.py.
        torch.set_num_threads(1)
        started = time.monotonic()
        name = args["model_name"]
        try:
            served = read_served_model(Path(args["model_repository"]), args["model_version"])
            model_config = json.loads(args["model_config"])
            placement = device.placement(
                args["model_instance_kind"], args["model_instance_device_id"], served.device_map
            )
            self.loaded = load_engine(served, placement, device.cpu_threads(model_config))
        except LoadError as error:
            log.error(f"{name}: {error}")
            raise pb_utils.TritonModelException(f"{name}: {error}") from None
        self.batched = served.max_batch_size > 0
        seconds = time.monotonic() - started
        log.info(f"{name}: {self.loaded.description}, loaded in {seconds:.1f} s")

    def execute(self, requests: list[Any]) -> None:
        """Takes the requests' response senders; the engine's thread answers them."""
        for request in requests:
            answer = _Answer(request, batched=self.batched)
            try:
                fields = RequestFields(
                    request, pb_utils.get_input_tensor_by_name, batched=self.batched
                )
                answer.start(parse_request(fields, self.loaded.reader), self.loaded)
            except RuntimeModelError as error:
                answer.fail(error)
            except Exception as error:
                # Our own fault, but one request's answer all the same.
                log.error(f"a request failed: {place(error)}")
                answer.fail(error)

    def finalize(self) -> None:
        """Stops the engine; what it still holds is answered with UNAVAILABLE."""
        if hasattr(self, "loaded"):
            self.loaded.engine.stop()


class _Answer:
    """Collects the completions of a request's rows and sends its one response when the last is
    there.
    """

    def __init__(self, request: Any, *, batched: bool) -> None:
        self._sender = request.get_response_sender()
        self._requested = set(request.requested_output_names())
        self._batched = batched
        self._lock = threading.Lock()
        self._completions: list[Completion | None] = []
        self._num_missing = 0
        self._sent = False

    def start(self, request: GenerationRequest, loaded: LoadedModel) -> None:
        """Submits the rows; raises OverloadedError, with none submitted, where there is no room."""
        self._request = request
        self._completions = [None] * len(request.rows)
        self._num_missing = len(request.rows)
        loaded.engine.submit([self._sequence(row, loaded) for row in range(len(request.rows))])

    def fail(self, error: Exception) -> None:
        """Answers with the error, once."""
        with self._lock:
            if self._sent:
                return
            self._sent = True
        text = (
            str(error)
            if isinstance(error, RuntimeModelError)
            else f"internal error: {type(error).__name__}"
        )
        status = getattr(pb_utils.TritonError, getattr(error, "status", "INTERNAL"))
        self._send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text, status)))

    def _sequence(self, row: int, loaded: LoadedModel) -> Sequence:
        generation = self._request.rows[row]
        params, continues = generation.params, not loaded.is_encoder_decoder
        context = generation.prompt_token_ids if continues else []
        return Sequence(
            generation.prompt_token_ids,
            params,
            on_finish=lambda result: self._finished(row, result),
            detokenizer=Detokenizer(loaded.tokenizer, context, params.stop_words),
            continues_prompt=continues,
        )

    def _finished(self, row: int, result: Completion | Exception) -> None:
        """Called from the engine's thread; the last row sends the response."""
        if isinstance(result, Exception):
            self.fail(result)
            return
        with self._lock:
            self._completions[row] = result
            self._num_missing -= 1
            if self._num_missing or self._sent:
                return
            self._sent = True
        self._send(pb_utils.InferenceResponse(self._tensors()))

    def _send(self, response: Any) -> None:
        try:
            # One call: a flag sent alone, to a client that has gone, crashed servers of 24.10.
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception as error:
            # The caller is gone; nobody is left to tell but the operator.
            log.warn(f"a response could not be sent: {type(error).__name__}: {reason(error)}")

    def _tensors(self) -> list[Any]:
        """The outputs that the request wants, [rows, 1], or [1] without batching."""
        done = [completion for completion in self._completions if completion is not None]
        rows = self._request.rows
        texts = [_output_text(row, completion) for row, completion in zip(rows, done, strict=True)]
        columns = {
            "text_output": _strings(texts),
            "finish_reason": _strings([completion.finish_reason for completion in done]),
            "num_input_tokens": _counts([completion.num_input_tokens for completion in done]),
            "num_output_tokens": _counts([len(completion.token_ids) for completion in done]),
        }
        shape = (len(done), 1) if self._batched else (1,)
        wanted = [name for name in _OUTPUTS if self._wants(name)]
        return [pb_utils.Tensor(name, columns[name].reshape(shape)) for name in wanted]

    def _wants(self, name: str) -> bool:
        """True for the text and what a flag asks for; where a request lists outputs, for those.

        Never for one that the request did not list: the stub would drop it in ``send`` without
        holding the interpreter's lock, which kills it on Python 3.12.
        """
        if len(self._requested) < len(_OUTPUTS):
            return name in self._requested
        return name == "text_output" or name in self._request.outputs


def _output_text(generation: Generation, completion: Completion) -> str:
    return completion.text if generation.exclude_input else generation.text + completion.text


def _strings(values: list[str]) -> Any:
    return np.array([value.encode() for value in values], dtype=np.object_)


def _counts(values: list[int]) -> Any:
    return np.array(values, dtype=np.uint32)
