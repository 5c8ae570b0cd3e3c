"""One way to ask a served model, whether a stub or a real server answers.

Knows how the contract's options become tensors and parameters; knows no transport.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from wire import Array, Reply, Request, Value, strings

OPTION_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k"), np.int32),
    **dict.fromkeys(("temperature", "top_p", "repetition_penalty"), np.float32),
    "seed": np.uint64,
    **dict.fromkeys(
        (
            "exclude_input_in_output",
            "return_finish_reason",
            "return_num_input_tokens",
            "return_num_output_tokens",
        ),
        np.bool_,
    ),
}
OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")


class Endpoint(Protocol):
    """Where requests go."""

    def infer(self, model: str, request: Request) -> Reply:
        """One request of ``/infer`` or gRPC."""

    def infer_together(self, model: str, requests: Sequence[Request]) -> list[Reply]:
        """Several at the same time, answered in their order."""

    def generate(self, model: str, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        """``/generate``: status and body."""


@dataclass(frozen=True)
class Model:
    """A model at an endpoint. ``batched``: its tensors are ``[batch, 1]``, else ``[1]``."""

    endpoint: Endpoint
    name: str
    batched: bool

    def by_tensors(self, text: str | bytes, *outputs: str, **options: Any) -> Request:
        """A request that gives every option as a tensor."""
        tensors = {"text_input": strings(text)}
        for name, value in options.items():
            tensors[name] = strings(*value) if name == "stop_words" else option(name, value)
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

    def infer(self, request: Request) -> Reply:
        return self.endpoint.infer(self.name, request)

    def infer_together(self, requests: Sequence[Request]) -> list[Reply]:
        return self.endpoint.infer_together(self.name, requests)

    def generate(self, body: Mapping[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
        return self.endpoint.generate(self.name, body)


def option(name: str, *values: Any) -> Array:
    """An option's tensor of shape (len(values),), in its declared type."""
    return np.array(values, dtype=OPTION_TYPES[name])


def rows(texts: Sequence[str | bytes], **columns: Sequence[Any]) -> Request:
    """A client's batch: each option one value a row, stop_words one list of equal length a row."""
    tensors = {"text_input": strings(*texts).reshape(-1, 1)}
    for name, values in columns.items():
        if name == "stop_words":
            tensors[name] = np.stack([strings(*words) for words in values])
        else:
            tensors[name] = option(name, *values).reshape(-1, 1)
    return Request(tensors)
