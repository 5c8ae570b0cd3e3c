"""Answers requests, whichever process they came from: each through exactly one responder, by any
number of responses with ``final`` false, then one with ``final`` true or an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import log
from ..errors import EngineError, RuntimeModelError, place, reason
from ..log import labelled
from .request_parameters import EMPTY_FINAL, call_in

Array = npt.NDArray[Any]


class Responder(Protocol):
    """Answers one request. Every method may be called from any thread and never blocks for long."""

    @property
    def request_id(self) -> str: ...

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        """Sends one response, the last one where ``final``; a caller that has gone is no error."""

    def fail(self, error: Exception) -> None:
        """Sends an error as the last response."""

    def is_cancelled(self) -> bool:
        """True if the caller has gone or has cancelled the request."""


def status_and_text(error: Exception) -> tuple[str, str]:
    """An error's Triton status (``INVALID_ARG``, ...) and the text that the caller may read."""
    if isinstance(error, RuntimeModelError):
        # Half of a pair of surrogates, which a hook may quote of JSON, is no text of Triton's.
        return error.status, str(error).encode(errors="replace").decode()
    return "INTERNAL", f"internal error: {type(error).__name__}"


def attempt(responder: Responder, run: Callable[..., object], *given: Any) -> None:
    """Does a part of a request's work; what it raises becomes the answer."""
    try:
        run(*given)
    except BaseException as error:  # a panic in the Rust of tokenizers is no Exception
        answer_failure(responder, error)


def attempt_on(pool: Executor, responder: Responder, part: Callable[[], None]) -> None:
    """Attempts a part of a request's work on a thread of ``pool``; on this one after its shutdown,
    when that part only answers that the model is being unloaded, and where no thread starts.
    """
    parts = [part]  # a pool that could start no thread keeps what it took, and runs it later

    def run() -> None:
        if parts:
            attempt(responder, parts.pop())

    try:
        pool.submit(run)
    except RuntimeError:
        run()


def answer_failure(responder: Responder, error: BaseException) -> None:
    """Answers with an error or a panic of Rust code; logs the place of a bug of ours."""
    if not isinstance(error, RuntimeModelError):
        log.error(f"a request failed: {place(error)}", responder.request_id)
        error = EngineError(f"internal error: {type(error).__name__}")
    try:
        responder.fail(error)
    except Exception as another:
        log.error(f"an error could not be sent: {place(another)}", responder.request_id)


class EndingResponder:
    """Passes responses on to ``inner``, and calls ``on_end`` once after the last one: with its
    error, or None.
    """

    def __init__(self, inner: Responder, on_end: Callable[[Exception | None], None]) -> None:
        self.request_id, self.is_cancelled = inner.request_id, inner.is_cancelled
        self._inner = inner
        self._on_end = [on_end]  # pop is atomic: the thread that gets the item calls it

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        self._inner.send(outputs, final=final)
        if final:
            self._end(None)

    def fail(self, error: Exception) -> None:
        try:
            self._inner.fail(error)
        finally:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        try:
            on_end = self._on_end.pop()
        except IndexError:
            return  # ended before
        on_end(error)


class TritonResponder:
    """Answers a Triton request through its own response sender.

    Triton 24.10 crashes if ``is_cancelled`` is called after or during the final ``send``: so a
    lock, and no call after the end. A sender that ``is_cancelled`` was called on frees shared
    memory when it is deleted, and crashes its process if that memory is gone by then: so it is
    dropped at the end.

    The final flag goes with the last response, but for a client that asks for an empty one. It came
    through the proxy, which cancels nothing that a Triton before 25.06 could die of: two responses
    in a row to a client that leaves meanwhile, whatever is in them, end 24.10.
    """

    def __init__(self, request: Any, pb_utils: Any, *, decoupled: bool = False) -> None:
        """``decoupled``: the model may answer with many responses."""
        parameters = request.parameters()
        self._ends_empty = decoupled and EMPTY_FINAL in parameters
        call = call_in(parameters)
        self._left_file = call and call.left_file
        self._outputs = frozenset(request.requested_output_names())
        self.request_id: str = request.request_id()
        self._sender: Any = request.get_response_sender()  # None after the last response
        self._pb_utils = pb_utils
        self._lock = threading.Lock()

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        # An output that the caller did not list would be dropped by Triton's stub without the
        # interpreter's lock, which kills it on Python 3.12.
        wanted = {name: array for name, array in outputs.items() if name in self._outputs}
        tensors = [self._pb_utils.Tensor(name, array) for name, array in wanted.items()]
        response = self._pb_utils.InferenceResponse(tensors)
        if final and self._ends_empty and not self.is_cancelled():
            self._send(response, final=False)
            response = None
        self._send(response, final=final)

    def fail(self, error: Exception) -> None:
        status, text = status_and_text(error)
        triton_error = self._pb_utils.TritonError
        code = getattr(triton_error, status, triton_error.INTERNAL)
        answer = triton_error(labelled(self.request_id, text), code)
        self._send(self._pb_utils.InferenceResponse(error=answer), final=True)

    def is_cancelled(self) -> bool:
        with self._lock:
            if self._sender is None:
                return False
            has_left = self._left_file is not None and os.access(self._left_file, os.F_OK)
            return has_left or bool(self._sender.is_cancelled())

    def _send(self, response: Any, *, final: bool) -> None:
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        with self._lock:
            sender = self._sender
            if sender is None:
                return
            if final:
                self._sender = None
            try:
                sender.send(*([] if response is None else [response]), flags=flags)
            except Exception as error:
                # The caller has gone: only the operator can be told.
                text = f"a response could not be sent: {type(error).__name__}: {reason(error)}"
                log.warn(text, self.request_id)


def strings(values: list[str]) -> Array:
    """A text tensor of shape (len(values),)."""
    return np.array([value.encode() for value in values], dtype=np.object_)
