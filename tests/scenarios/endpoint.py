"""One way to ask a served model, whether a stub or a real server answers.

Knows how the contract's options become tensors and parameters; knows no transport.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from wire import Array, Reply, Request, Value, strings

OUTPUTS = (
    "text_output",
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "num_input_tokens",
    "num_output_tokens",
)
FLAGS = {f"return_{name}": True for name in OUTPUTS[1:]}
TEXTS = (
    *("text_input", "messages", "tools", "chat_template_kwargs"),
    *("stop_words", "bad_words", "sampling_parameters", "on_timeout"),
    "lora_name",
    *("json_schema", "regex", "choice", "source_lang", "target_lang"),
)
LISTS = ("stop_words", "bad_words", "choice")  # the others are one element a row
OPTION_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(
        ("max_tokens", "min_tokens", "top_k", "n", "beam_width", "timeout_ms"), np.int32
    ),
    **dict.fromkeys(
        (
            *("temperature", "top_p", "repetition_penalty"),
            *("frequency_penalty", "presence_penalty", "length_penalty"),
        ),
        np.float32,
    ),
    **dict.fromkeys(("seed", "random_seed"), np.uint64),
    **dict.fromkeys(("stream", "exclude_input_in_output", "truncate", *FLAGS), np.bool_),
}


class Endpoint(Protocol):
    """Takes requests. A model's counts are on ``/metrics`` within ``settled_s``."""

    settled_s: float

    def infer(self, model: str, request: Request) -> Reply:
        """One request of ``/infer`` or gRPC."""

    def infer_together(self, model: str, requests: Sequence[Request]) -> list[Reply]:
        """Several at the same time, answered in their order."""

    def generate(self, model: str, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        """``/generate``: status and body."""

    def generate_stream(
        self, model: str, body: Mapping[str, Any] | bytes
    ) -> tuple[int, list[dict[str, Any]]]:
        """``/generate_stream``: status and events."""

    def stream(self, model: str, request: Request) -> list[Reply]:
        """All replies of one streaming request; an error is the last one, with a status that the
        way of streaming decides. Fails unless the FINAL flag came exactly once, with the last.
        """

    def stream_together(self, model: str, requests: Sequence[Request]) -> list[list[Reply]]:
        """Several streams at the same time, answered in their order."""

    def left_stream(self, model: str, request: Request) -> AbstractContextManager[Reply]:
        """Starts a stream, gives its first reply, and leaves it at the end of the block."""

    def cancelled_infer(
        self, model: str, request: Request
    ) -> AbstractContextManager[Callable[[], bool]]:
        """Starts a unary request, and cancels it at the end of the block.

        Gives a function that says whether the request was answered.
        """


@dataclass(frozen=True)
class Model:
    """A model at an endpoint. ``batched``: its tensors are ``[batch, 1]``, else ``[1]``."""

    endpoint: Endpoint
    name: str
    batched: bool

    @property
    def engine(self) -> Model:
        """The decoupled folder of a streaming model, which this one forwards to."""
        return replace(self, name=f"{self.name}_stream")

    @property
    def settled_s(self) -> float:
        return self.endpoint.settled_s

    def by_tensors(self, text: str | bytes | None, *outputs: str, **options: Any) -> Request:
        """A request that gives every option as a tensor; ``text`` None: no ``text_input``."""
        fields = options if text is None else {"text_input": text, **options}
        tensors = {name: tensor(name, value) for name, value in fields.items()}
        if self.batched:
            tensors = {name: array.reshape(1, -1) for name, array in tensors.items()}
        return Request(tensors, outputs=outputs)

    def by_parameters(self, text: str | bytes, *outputs: str, **options: Value) -> Request:
        """A request that gives every option as a request parameter."""
        return Request(self.by_tensors(text).tensors, options, outputs)

    def request(self, how: str, text: str | bytes, *outputs: str, **options: Any) -> Request:
        """``how`` is ``tensors`` or ``parameters``."""
        make = self.by_tensors if how == "tensors" else self.by_parameters
        return make(text, *outputs, **options)

    def ask(self, how: str, text: str | bytes, *outputs: str, **options: Any) -> Reply:
        """One request and its reply."""
        return self.infer(self.request(how, text, *outputs, **options))

    def sample(self, text: str | bytes, /, **sampling: Any) -> Reply:
        """One request with its options in ``sampling_parameters``, and every output."""
        return self.infer(self.by_tensors(text, sampling_parameters=json.dumps(sampling), **FLAGS))

    def infer(self, request: Request) -> Reply:
        return self.endpoint.infer(self.name, request)

    def infer_together(self, requests: Sequence[Request]) -> list[Reply]:
        return self.endpoint.infer_together(self.name, requests)

    def generate(self, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        return self.endpoint.generate(self.name, body)

    def generate_stream(self, body: Mapping[str, Any] | bytes) -> tuple[int, list[dict[str, Any]]]:
        return self.endpoint.generate_stream(self.name, body)

    def stream(self, text: str | bytes | None, /, *outputs: str, **options: Any) -> list[Reply]:
        """The chunks of a request that gives its options as tensors, ``stream`` true among them."""
        return self.endpoint.stream(self.name, self.streaming(text, *outputs, **options))

    def streaming(self, text: str | bytes | None, /, *outputs: str, **options: Any) -> Request:
        """The request of ``stream``."""
        return self.by_tensors(text, *outputs, **{"stream": True, **options})


def tensor(name: str, value: Any) -> Array:
    """A tensor of one row, flat: one element, or all of a list's."""
    if name not in TEXTS:
        return option(name, value)
    return strings(*value) if name in LISTS else strings(value)


def option(name: str, *values: Any) -> Array:
    """An option's tensor of shape (len(values),), in its declared type."""
    return np.array(values, dtype=OPTION_TYPES[name])


def rows(texts: Sequence[str | bytes], **columns: Sequence[Any]) -> Request:
    """A client's batch: each option one value a row, lists of words of equal length a row."""
    tensors = {"text_input": strings(*texts).reshape(-1, 1)}
    for name, values in columns.items():
        if name in LISTS:
            tensors[name] = np.stack([strings(*words) for words in values])
        elif name in TEXTS:
            tensors[name] = strings(*values).reshape(-1, 1)
        else:
            tensors[name] = option(name, *values).reshape(-1, 1)
    return Request(tensors)


def joined(chunks: Sequence[Reply]) -> str:
    """The text of a stream with one choice; fails where an error is among its chunks."""
    for chunk in chunks:
        assert chunk.ok, chunk.error
    return "".join(chunk.text() for chunk in chunks)
