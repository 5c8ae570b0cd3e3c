"""Runs ``preprocess`` on requests and ``postprocess`` on their responses, of a hooks file or of a
model.py. Every request is answered exactly once, whatever a hook does; a hook that fails fails its
own request only.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_triton.hooks import HookRequest, HookResponse, HookTensors
from hf_triton.tracing.trace import timed

from .. import log
from ..errors import HookError, LoadError, OverloadedError, RuntimeModelError, reason
from ..metrics.observations import Observations
from ..request.declared_tensor import DeclaredTensor
from ..request.request import Request
from ..request.responder import Array, answer_failure, attempt

NAMES = ("preprocess", "postprocess")
Functions = Mapping[str, Callable[[Any], Any]]


def functions_of(holder: object) -> Functions:
    """The functions ``preprocess`` and ``postprocess``, as far as ``holder`` defines them."""
    return {name: found for name in NAMES if callable(found := getattr(holder, name, None))}


class HookFile:
    """A loaded hooks file. ``name`` is its path as models.yaml gives it, for errors."""

    def __init__(
        self,
        path: Path,
        name: str,
        observations: Observations,
        functions: Functions | None = None,
    ) -> None:
        """``functions`` are those of a file that is loaded. Raises LoadError with the line."""
        self.name = name
        self.observations = observations
        self._path = str(path)
        self._functions = functions or functions_of(self._load_module(path))
        if not self._functions:
            raise LoadError(f"hooks: {name} has neither preprocess nor postprocess")

    def defines(self, function: str) -> bool:
        return function in self._functions

    def run(self, function: str, subject: HookTensors, *, request_id: str = "") -> None:
        """Runs a function of the file, if it is defined, on a request or a response, which it
        changes in place; ``request_id`` is for the log. Raises RuntimeModelError: the error for the
        caller. The log gets the line in the hooks file, and not the error's text, which may quote a
        prompt.
        """
        if function not in self._functions:
            return
        try:
            with self.observations.active():
                returned = self._functions[function](subject)
            if isinstance(returned, Mapping) and returned is not subject:
                subject.replace(dict(returned))
            elif returned is not None and returned is not subject:
                got = type(returned).__name__
                raise HookError(f"returned {got}, allowed: None or a dict of tensors")
            subject.check()
        except BaseException as error:
            # SystemExit too: it would end the thread silently, and the caller would wait for ever.
            if isinstance(error, RuntimeModelError) and not isinstance(error, HookError):
                raise
            what = (
                f": {error}" if isinstance(error, HookError) else f" raised {type(error).__name__}"
            )
            message = f"{self._location(error)}: {function}{what}"
            log.error(message, request_id)
            raise HookError(message) from error

    def _load_module(self, path: Path) -> types.ModuleType:
        module = types.ModuleType(f"hf_triton_hooks_{abs(hash(self._path))}")
        module.__file__ = self._path
        sys.modules[module.__name__] = module  # dataclasses and pickle look it up there
        try:
            code = compile(path.read_bytes(), self._path, "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102, the user's own file is what is served
        except BaseException as error:
            kind = type(error).__name__
            line = f"hooks: {self._location(error)}: {kind}: {reason(error)}"
            raise LoadError(line) from error
        return module

    def _location(self, error: BaseException) -> str:
        """``my_hooks.py:12``: the innermost line of the hooks file in the error's traceback."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == self._path]
        if isinstance(error, SyntaxError) and error.filename == self._path:
            lines.append(error.lineno)
        return f"{self.name}:{lines[-1]}" if lines else self.name


Work = Callable[[], None]
PassOn = Callable[[Request], None]

NUM_THREADS = 8  # for each of the two functions
MAX_WAITING = 1024


class HookRunner:
    def __init__(
        self,
        file: HookFile,
        inputs: Mapping[str, DeclaredTensor],
        outputs: Mapping[str, DeclaredTensor],
        *,
        batched: bool,
    ) -> None:
        self.file, self.outputs = file, outputs
        self._inputs, self._batched = inputs, batched
        self.preprocess = HookThreads("preprocess", file)
        self.postprocess = HookThreads("postprocess", file)
        self._closing = False

    def receive(self, request: Request, pass_on: PassOn) -> None:
        """Passes the preprocessed request on, from another thread if there is a function."""
        num_rows = next((array.shape[0] for array in request.inputs.values()), 1)
        seen = HookRequest(
            request.inputs,
            self._inputs,
            num_rows if self._batched else None,
            parameters=request.parameters,
            outputs=tuple(request.outputs),
        )
        hooked = HookedRequest(self, request, seen)
        if not self.file.defines("preprocess"):
            hooked.pass_on(pass_on)
        elif self._closing:
            raise OverloadedError("the model is being unloaded: try again")
        elif len(self.preprocess.open) >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} requests wait for preprocess: try again")
        else:
            self.preprocess.submit(hooked, partial(hooked.preprocess, pass_on))

    def drain(self, timeout_s: float) -> None:
        """Takes no more; answers UNAVAILABLE where ``preprocess`` does not return in time."""
        self._closing = True
        self.preprocess.end(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Ends the threads; a ``postprocess`` that does not return in time becomes an error."""
        self.postprocess.end(timeout_s)
        self.preprocess.close()
        self.postprocess.close()


class HookedRequest:
    """A request on its way through the hooks, and the responder that the task gets where there is a
    ``postprocess``: that runs on each response, in order, before it is sent.
    """

    def __init__(self, runner: HookRunner, arrived: Request, request: HookRequest) -> None:
        self._runner, self._arrived, self._request = runner, arrived, request
        self._inner = arrived.responder
        self.request_id = self._inner.request_id
        self._may_fail = [True]  # pop is atomic: the thread that gets the item sends the error

    @property
    def has_failed(self) -> bool:
        return not self._may_fail

    def preprocess(self, pass_on: PassOn) -> None:
        """Passes the request on, unless it has been answered while it waited."""
        if not self.has_failed:
            self._run("preprocess", self._request)
        if not self.has_failed:
            self.pass_on(pass_on)

    def pass_on(self, pass_on: PassOn) -> None:
        request, is_hooked = self._request, self._runner.file.defines("postprocess")
        changed = replace(
            self._arrived,
            inputs=dict(request),
            parameters=request.parameters,
            outputs=request.outputs,
            responder=self if is_hooked else self._inner,
        )
        attempt(self._inner, pass_on, changed)

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        self._runner.postprocess.submit(self, partial(self._postprocess, outputs, final=final))

    def fail(self, error: Exception) -> None:
        self._runner.postprocess.submit(self, partial(self.fail_now, error))

    def is_cancelled(self) -> bool:
        # Once a request has failed, the engine need not generate the rest of it.
        return self.has_failed or self._inner.is_cancelled()

    def fail_now(self, error: BaseException) -> None:
        """Sends an error at once, unless one was sent before."""
        with suppress(IndexError):
            self._may_fail.pop()
            answer_failure(self._inner, error)

    def _postprocess(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        if self.has_failed:
            return
        response = HookResponse(outputs, self._runner.outputs, self._request, is_final=final)
        self._run("postprocess", response)
        if not self.has_failed:
            self._inner.send(dict(response), final=final)

    def _run(self, function: str, subject: HookTensors) -> None:
        with timed(self._arrived.trace, function):
            self._runner.file.run(function, subject, request_id=self.request_id)


class HookThreads:
    """Runs each request's work in the order of its arrival, and that of different requests at once;
    what it raises is the request's error.

    The threads are daemons, which concurrent.futures' are not: a hook that never returns does not
    keep the process alive. There are none for a function that the file does not define.
    """

    def __init__(self, function: str, file: HookFile) -> None:
        self.open: dict[HookedRequest, deque[Work]] = {}  # the first of each runs
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[HookedRequest | None] = queue.SimpleQueue()
        for _ in range(NUM_THREADS if file.defines(function) else 0):
            threading.Thread(target=self._run, name=function, daemon=True).start()

    def submit(self, request: HookedRequest, work: Work) -> None:
        with self._lock:
            works = self.open.setdefault(request, deque())
            works.append(work)
            if len(works) > 1:
                return
        self._waiting.put(request)

    def end(self, timeout_s: float) -> None:
        """Waits for the requests that are open, and fails those that are left."""
        deadline_s = time.monotonic() + timeout_s
        while self.open and time.monotonic() < deadline_s:
            time.sleep(0.01)
        for request in list(self.open):
            request.fail_now(OverloadedError("the model is being unloaded: try again"))

    def close(self) -> None:
        """Ends every thread when it has done what was submitted; waits for none."""
        for _ in range(NUM_THREADS):
            self._waiting.put(None)

    def _run(self) -> None:
        while request := self._waiting.get():
            works = self.open[request]
            try:
                works[0]()
            except Exception as error:
                request.fail_now(error)
            with self._lock:
                works.popleft()
                if not works:
                    del self.open[request]
            if works:  # at the end of the queue: other requests wait too
                self._waiting.put(request)
            del request, works  # which hold its arrays
