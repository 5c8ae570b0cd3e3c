"""Encoders and pipelines whose model is a stand-in that computes the lengths of words, and fails or
waits where a test says so: with their real receptions, engines and threads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from hf_triton.encoder.encoder_loading import LoadedEncoder
from hf_triton.encoder.engine.encoder_engine import EncoderEngine
from hf_triton.encoder.options import EncoderOptions
from hf_triton.encoder.reception import Reception as EncoderReception
from hf_triton.encoder.runners.encoder_runner import Runner
from hf_triton.encoder.task import EncoderTask, Prepared, TaskSetup
from hf_triton.encoder.texts.encoding import Encoding
from hf_triton.pipeline.options import Options as PipelineOptions
from hf_triton.pipeline.pipeline_engine import PipelineEngine, PipelineInput
from hf_triton.pipeline.pipeline_loading import LoadedPipeline
from hf_triton.pipeline.reception import Reception as PipelineReception
from hf_triton.pipeline.request import Query, Row
from hf_triton.runtime.errors import RequestError
from hf_triton.runtime.request.request import Request
from hf_triton.runtime.request.responder import Array, attempt
from hf_triton.runtime.request.tensors import RequestFields, text
from tests.support.triton import eventually


class Panic(BaseException):
    """A panic in Rust, as Python has it: no Exception."""


ERRORS: dict[str, tuple[type[BaseException], str]] = {
    "raise-in-read": (RequestError, "refused"),
    "panic-in-read": (Panic, "index out of range: secret"),
    "wrong": (ValueError, "a wrong word"),
    "unlucky": (RuntimeError, "secret"),
    "panic": (Panic, "secret"),
    "raise-in-reduce": (ValueError, "reduced to nothing"),
    "raise-in-answer": (KeyError, "secret"),
    "panic-in-answer": (Panic, "secret"),
}


def raise_for(words: Sequence[str], *errors: str) -> None:
    for word in errors:
        if word in words:
            kind, said = ERRORS[word]
            raise kind(said)


class Gate:
    """A place of the stand-in that can be held; ``entered`` once somebody was there."""

    def __init__(self) -> None:
        self.entered, self.may_go = threading.Event(), threading.Event()
        self.may_go.set()

    def go_through(self) -> None:
        self.entered.set()
        assert self.may_go.wait(60)


class StandIn:
    """Reads words, and computes how long each is. A word of ERRORS fails there."""

    # As a pipeline has them.
    device, tokenizer = SimpleNamespace(type="cpu"), None
    model = SimpleNamespace(config=SimpleNamespace())

    def __init__(self) -> None:
        self.reading, self.long_text, self.computing = Gate(), Gate(), Gate()
        self.num_read = 0
        self.steps: list[list[str]] = []

    def read(self, sent: str) -> list[str]:
        words = sent.split()
        (self.long_text if "long" in words else self.reading).go_through()
        self.num_read += 1
        raise_for(words, "raise-in-read", "panic-in-read")
        return words

    def lengths(self, words: Sequence[str]) -> list[int]:
        self.computing.go_through()
        self.steps.append([*words])
        raise_for(words, "wrong", "unlucky", "panic")
        return list(map(len, words))


class Words(EncoderTask):
    """The stand-in as a task of encoders: each letter of a word is a token."""

    auto_class = "AutoModel"

    def __init__(self, model: StandIn) -> None:
        tokenization: Any = SimpleNamespace(tokenizer=None)
        options = SimpleNamespace(OUTPUT="hidden")
        super().__init__(TaskSetup(options, None, cast(Any, None), tokenization, False))
        self._model = model

    def prepare(self, fields: RequestFields, wanted: frozenset[str]) -> Prepared:
        words = self._model.read(fields.values("text_input", text, "")[0])

        def answer(results: list[Array]) -> Mapping[str, Array]:
            raise_for(words, "raise-in-answer", "panic-in-answer")
            return {"lengths": np.array([int(one.item()) for one in results])}

        return Prepared([Encoding([*map(ord, word)]) for word in words], answer)

    def reduce(
        self, outputs: Sequence[torch.Tensor], encodings: Sequence[Encoding]
    ) -> Sequence[torch.Tensor]:
        raise_for([*map(spelt, encodings)], "raise-in-reduce")
        return outputs


def spelt(encoding: Encoding) -> str:
    return "".join(map(chr, encoding.input_ids))


class LengthRunner(Runner):
    def __init__(self, model: StandIn) -> None:
        self._model = model

    def forward(self, batch: Sequence[Encoding]) -> list[torch.Tensor]:
        return [torch.tensor(float(one)) for one in self._model.lengths([*map(spelt, batch)])]


class WordReader:
    """The stand-in as a pipeline's reader: an item is a word, and ``word:key`` one with parameters
    of its own.
    """

    call = SimpleNamespace(names=())

    def __init__(self, model: StandIn) -> None:
        self._model = model

    def read(self, row: Row, parameters: Mapping[str, Any]) -> list[Query]:
        sent, _, key = row["inputs"][0].decode().partition(":")
        words, many = self._model.read(sent), " " in sent
        return [
            Query(
                [
                    PipelineInput(word, {"key": key}, key, f"input {place}: " if many else "")
                    for place, word in enumerate(words)
                ],
                is_list=len(words) != 1,
            )
        ]


class LengthEngine(PipelineEngine):
    def check(self, given: PipelineInput) -> None:
        if given.item == "refused":
            raise RequestError("refused")

    def results(self, inputs: Sequence[PipelineInput]) -> list[int]:
        lengths: list[int] = self.pipe.lengths([given.item for given in inputs])
        return lengths


class Caller:
    """A responder that keeps the numbers that it is sent, or their error; ``breaks`` names what
    raises.
    """

    request_id = "7"

    def __init__(self, breaks: str = "") -> None:
        self.answers: list[Any] = []
        self.has_left = self.was_asked = False
        self.answered_by = ""  # a thread
        self._breaks = breaks
        self._done = threading.Event()

    def send(self, outputs: Mapping[str, Array], *, final: bool) -> None:
        assert final
        self._break("send")
        (array,) = outputs.values()
        numbers: list[int] = []
        for value in array.reshape(-1).tolist():
            found = json.loads(value) if isinstance(value, bytes) else value
            numbers += found if isinstance(found, list) else [found]
        self._keep(numbers)

    def fail(self, error: Exception) -> None:
        self._keep(error)
        self._break("fail")

    def is_cancelled(self) -> bool:
        self.was_asked = True
        self._break("is_cancelled")
        return self.has_left

    def _break(self, what: str) -> None:
        if self._breaks == what:
            raise OSError("no shared memory left")

    def _keep(self, answer: Any) -> None:
        self.answers.append(answer)
        self.answered_by = threading.current_thread().name
        self._done.set()

    def answer(self) -> Any:
        assert self._done.wait(60), "never answered"
        assert len(self.answers) == 1
        return self.answers[0]


class Served:
    """A reception, its engine, and the stand-in behind them."""

    engine: Any
    reception: Any
    field: str
    shape: tuple[int, ...]

    def __init__(self) -> None:
        self.model = StandIn()

    def ask(self, *rows: str, breaks: str = "") -> Caller:
        caller = Caller(breaks)
        attempt(caller, self.reception.take, self.request(*rows, caller=caller))
        return caller

    def request(self, *rows: str, caller: Caller) -> Request:
        sent = np.array([row.encode() for row in rows], dtype=np.object_)
        return Request({self.field: sent.reshape(self.shape)}, {}, caller, ("lengths",))

    def ask_and_hold(self, words: str = "first") -> Caller:
        """The caller of a step that ends no sooner than ``computing.may_go`` is set."""
        gate = self.model.computing
        gate.may_go.clear()
        gate.entered.clear()
        caller = self.ask(words)
        assert gate.entered.wait(60)
        return caller

    def ask_together(self, *asked: str) -> list[Caller]:
        """Callers who wait together, after that of one who asked for ``first``."""
        callers = [self.ask_and_hold()]
        for number, words in enumerate(asked, 1):
            callers.append(self.ask(words))
            assert self.waits(number)
        self.model.computing.may_go.set()
        return callers

    def waits(self, number: int) -> bool:
        """True once so many requests wait for the step under way to end."""
        return eventually(lambda: self.engine.thread.num_unfinished == number + 1)

    def is_idle(self) -> bool:
        return eventually(lambda: self.reception.num_open == 0)

    def close(self, grace_s: float = 10.0) -> None:
        self.reception.stop(grace_s)


class ServedEncoder(Served):
    field, shape = "text_input", (-1,)

    def __init__(self, *, max_queue_size: int = 100, **options: Any) -> None:
        super().__init__()
        self.runner, task = LengthRunner(self.model), Words(self.model)
        limits: dict[str, Any] = {"max_num_batched_tokens": 64, "num_threads": 1}
        self.engine = EncoderEngine(lambda: self.runner, task.reduce, **limits, **options)
        self.engine.thread.start()
        self.reception = EncoderReception(
            LoadedEncoder(
                self.engine,
                task,
                EncoderOptions(max_queue_size=max_queue_size, num_tokenizer_threads=2),
                "lengths",
            ),
            batched=False,
        )


class ServedPipeline(Served):
    field, shape = "inputs", (-1, 1)

    def __init__(self, *, max_queue_size: int = 100, batch_size: int = 8, **options: Any) -> None:
        super().__init__()
        self.engine = LengthEngine(
            "lengths", lambda: self.model, batch_size=batch_size, num_threads=1, **options
        )
        self.engine.thread.start()
        limits = PipelineOptions(
            max_queue_size=max_queue_size, max_input_mib=1.0, num_reader_threads=1
        )
        reader: Any = WordReader(self.model)
        loaded = LoadedPipeline(self.engine, reader, limits, "lengths")
        self.reception = PipelineReception(loaded, batched=True)


@contextmanager
def serving(kind: Callable[..., Served], **options: Any) -> Iterator[Any]:
    served = kind(**options)
    try:
        yield served
    finally:
        served.model.computing.may_go.set()
        served.model.reading.may_go.set()
        served.close()
