"""An Intake with a hooks file, and callers that keep what they are answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from hf_triton.runtime.engine.intake import Intake
from hf_triton.runtime.hooking.hook_runner import functions_of
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import attempt
from tests.support.served_models import served_model

Array = npt.NDArray[Any]
OUTPUTS = ("text_output", "score", "label")
_CONFIG = {
    "input": [
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "words", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "top_k", "data_type": "TYPE_INT32", "dims": [1]},
        {"name": "flag", "data_type": "TYPE_BOOL", "dims": [1]},
    ],
    "output": [
        {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
        {"name": "score", "data_type": "TYPE_FP32", "dims": [-1]},
        {"name": "label", "data_type": "TYPE_STRING", "dims": [-1]},
    ],
}


def strings(*values: str) -> Array:
    return np.array([value.encode() for value in values], dtype=np.object_)


@dataclass
class Caller:
    """One request's responder: the responses and the error that it got."""

    request_id: str = ""
    responses: list[dict[str, list[Any]]] = field(default_factory=list)
    arrays: Mapping[str, Array] = field(default_factory=dict)  # of the last response
    error: Exception | None = None
    is_gone: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    __hash__ = object.__hash__

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        assert not self.done.is_set(), "answered twice"
        self.responses.append({name: array.tolist() for name, array in outputs.items()})
        self.arrays = outputs
        if final:
            self.done.set()

    def fail(self, error: Exception) -> None:
        assert not self.done.is_set(), "answered twice"
        self.error = error
        self.done.set()

    def is_cancelled(self) -> bool:
        return self.is_gone

    def wait(self) -> Caller:
        assert self.done.wait(60), "no answer in time"
        return self

    @property
    def text(self) -> str:
        """The text of the one response."""
        assert self.error is None, self.error
        (response,) = self.responses
        (text,) = response["text_output"]
        return str(text.decode())


def echo(request: Request) -> None:
    """A task that answers with its text and a score."""
    text = request.inputs["text_input"]
    score = np.full(text.shape, 0.5, dtype=np.float32)
    outputs = {"text_output": text, "score": score}
    wanted = {name: outputs[name] for name in request.outputs if name in outputs}
    request.responder.send(wanted, final=True)


@dataclass
class Driver:
    """``take`` is the task; what it was given is in ``taken``."""

    intake: Intake
    take: Callable[[Request], None] = echo
    taken: list[Request] = field(default_factory=list)

    def answer(self, request: Request) -> None:
        self.taken.append(request)
        self.take(request)

    def start(
        self,
        text: str | Array = "hello",
        listed: Iterable[str] = OUTPUTS,
        parameters: Mapping[str, Any] | None = None,
        request_id: str = "",
        inputs: Mapping[str, Array] = MappingProxyType({}),
        **more: Any,
    ) -> Caller:
        """Sends a request and does not wait."""
        caller = Caller(request_id)
        array = strings(text) if isinstance(text, str) else text
        own, given = {"text_input": array, **inputs}, dict(parameters or {})
        request = Request(own, given, caller, tuple(listed), **more)
        attempt(caller, self.intake.receive, request)
        return caller

    def ask(self, text: str | Array = "hello", **options: Any) -> Caller:
        """Sends a request and waits for its answer."""
        return self.start(text, **options).wait()


@contextmanager
def driving(
    folder: Path,
    hooks: str | None = None,
    *,
    model: object = None,
    metrics: Mapping[str, Any] | None = None,
    cache_mib: int | None = None,
    max_batch_size: int = 0,
) -> Iterator[Driver]:
    """An Intake of a model whose hooks file has the text ``hooks``, or which has the methods of
    ``model``, closed in the end.
    """
    (folder / "1").mkdir(exist_ok=True)
    if hooks is not None:
        (folder / "1" / "hooks.py").write_text(hooks, encoding="utf-8")
    served = served_model(
        folder,
        name="demo",
        task="echo",
        max_batch_size=max_batch_size,
        public_name="demo",
        hooks=None if hooks is None else "my_hooks.py",
        metrics={
            name: {"help": name, "labels": [], "buckets": [], **values}
            for name, values in (metrics or {}).items()
        },
        response_cache_mib=cache_mib,
    )
    args = {
        "model_config": json.dumps(_CONFIG),
        "model_version": "1",
        "model_instance_name": "demo_0",
    }
    intake = Intake(served, args, pb_utils, functions_of(model))
    driver = Driver(intake)
    intake.open(driver.answer)
    try:
        yield driver
    finally:
        intake.drain(5)
        intake.close()
