"""An encoder that fails on demand, in process: task, runner, caller, and what serves them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from hf_triton.encoder.engine.engine import EncoderEngine
from hf_triton.encoder.loading import LoadedEncoder
from hf_triton.encoder.options import EncoderOptions
from hf_triton.encoder.reception import Reception
from hf_triton.encoder.runners.runner import Runner
from hf_triton.encoder.task import Array, EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.plain_request import PlainRequest
from hf_triton.runtime.request.tensors import RequestFields, text
from tests.support.triton import eventually

SETUP = TaskSetup(None, None, None, None, False)  # type: ignore[arg-type]


class Panic(BaseException):
    """What a panic in Rust is in Python: no Exception."""


class Lengths(EncoderTask):
    """Answers how long each word of a text is. A word such as ``raise-in-answer`` fails there."""

    auto_class = "AutoModel"
    output = "hidden"

    def __init__(self) -> None:
        super().__init__(SETUP)
        self.held_may_go = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        (words,) = (value.split() for value in fields.values("text_input", text, ""))
        assert self.may_go.wait(60)
        assert "held" not in words or self.held_may_go.wait(60)
        raise_if("raise-in-prepare", words, RequestError("text_input: refused"))
        raise_if("panic-in-prepare", words, Panic("index out of range: secret"))
        encodings = [Encoding([13 if word.startswith("unlucky") else len(word)]) for word in words]

        def answer(results: list[Array]) -> Mapping[str, Array]:
            raise_if("raise-in-answer", words, KeyError("secret"))
            raise_if("panic-in-answer", words, Panic("secret"))
            found = [array.reshape(1) for array in results]
            return {"lengths": np.concatenate([np.zeros(0), *found])}

        return Prepared(encodings, answer)

    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> Sequence[torch.Tensor]:
        if any(encoding.input_ids == [len("raise-within-reduce")] for encoding in encodings):
            raise ValueError("reduced to nothing")
        return outputs


def raise_if(word: str, words: Sequence[str], error: BaseException) -> None:
    if word in words:
        raise error


class Echo(Runner):
    """Gives back token ids; fails where one is 13. ``entered`` is set by the first step."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Event()
        self.steps: list[int] = []

    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        self.entered.set()
        assert self.may_go.wait(60)
        self.steps.append(len(batch))
        if any(13 in encoding.input_ids for encoding in batch):
            raise RuntimeError("unlucky")
        return [torch.tensor(encoding.input_ids, dtype=torch.float64) for encoding in batch]


class Caller:
    """A responder that keeps the numbers that it is sent, or their error; ``breaks`` names what
    raises.
    """

    request_id = "7"

    def __init__(self, *, breaks: str = "") -> None:
        self.answers: list[Any] = []
        self.has_left = False
        self.was_asked = False
        self.answered_by = ""  # a thread
        self._breaks = breaks
        self._done = threading.Event()

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        assert final
        if self._breaks == "send":
            raise OSError("no shared memory left")
        (array,) = outputs.values()
        self._keep([int(value) for value in array.reshape(-1)])

    def fail(self, error: Exception) -> None:
        self._keep(error)
        if self._breaks == "fail":
            raise OSError("no shared memory left")

    def is_cancelled(self) -> bool:
        self.was_asked = True
        if self._breaks == "is_cancelled":
            raise OSError("no shared memory left")
        return self.has_left

    def _keep(self, answer: Any) -> None:
        self.answers.append(answer)
        self.answered_by = threading.current_thread().name
        self._done.set()

    def answer(self) -> Any:
        assert self._done.wait(60), "never answered"
        assert len(self.answers) == 1
        return self.answers[0]


class Served:
    """A reception, its engine and what they are made of."""

    def __init__(self, *, max_queue_size: int = 100) -> None:
        self.runner, self.task = Echo(), Lengths()
        self.engine = EncoderEngine(
            lambda: self.runner, self.task.reduce, max_num_batched_tokens=64, num_threads=1
        )
        self.engine.thread.start()
        self.reception = Reception(
            LoadedEncoder(self.engine, self.task, "lengths"),
            EncoderOptions(max_queue_size=max_queue_size, num_tokenizer_threads=2),
            inputs=("text_input",),
            batched=False,
        )

    def ask(self, words: str, *, breaks: str = "") -> Caller:
        caller = Caller(breaks=breaks)
        self.reception.take(request(words), ("lengths",), caller)
        return caller

    def ask_and_hold(self, words: str = "first") -> Caller:
        """The caller of a step that ends no sooner than ``runner.may_go`` is set."""
        self.runner.may_go.clear()
        self.runner.entered.clear()
        caller = self.ask(words)
        assert self.runner.entered.wait(60)
        return caller

    def ask_together(self, *words: str) -> list[Caller]:
        """The callers of one step, after that of one who asked for ``first`` and leads them."""
        callers = [self.ask_and_hold(), *map(self.ask, words)]
        assert self.waits(len(words))
        self.runner.may_go.set()
        return callers

    def close(self, grace_s: float = 10.0) -> None:
        self.reception.stop(grace_s)

    def is_idle(self) -> bool:
        return eventually(lambda: self.reception.num_open == 0)

    def waits(self, number: int) -> bool:
        """Whether so many requests wait for the step under way to end."""
        return eventually(lambda: len(self.engine.thread._submitted) == number)


def request(words: str) -> PlainRequest:
    return PlainRequest({"text_input": np.array([words.encode()], dtype=np.object_)}, {})


@contextmanager
def serving(**options: Any) -> Iterator[Served]:
    served = Served(**options)
    try:
        yield served
    finally:
        served.close()
