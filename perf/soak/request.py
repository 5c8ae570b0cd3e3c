"""What one request of the soak is, and its tensors and parameters; no transport, no randomness."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Beside sampling, what a request says how to answer: never in ``sampling_parameters``.
DATA_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("text_input", "messages", "tools", "chat_template_kwargs"),
            *("stop_words", "bad_words", "sampling_parameters", "on_timeout"),
        ),
        "BYTES",
    ),
    **dict.fromkeys(
        ("max_tokens", "min_tokens", "top_k", "n", "beam_width", "timeout_ms"), "INT32"
    ),
    **dict.fromkeys(
        (
            *("temperature", "top_p", "repetition_penalty"),
            *("frequency_penalty", "presence_penalty", "length_penalty"),
        ),
        "FP32",
    ),
    **dict.fromkeys(("seed", "random_seed"), "UINT64"),
    **dict.fromkeys(
        (
            *("stream", "exclude_input_in_output", "return_finish_reason"),
            *("return_cumulative_logprob", "return_logprobs"),
            *("return_num_input_tokens", "return_num_output_tokens"),
        ),
        "BOOL",
    ),
}
PARAMETERS_ONLY = ("min_p", "ignore_eos", "logprobs", "include_stop_str_in_output")
LISTS = ("stop_words", "bad_words")
JSON_NAMES: Mapping[str, str] = {
    "stop_words": "stop",
    **{
        name: name
        for name in (
            *("max_tokens", "min_tokens", "top_k", "n", "temperature", "top_p", "min_p"),
            *("repetition_penalty", "frequency_penalty", "presence_penalty", "seed"),
            *("bad_words", "ignore_eos", "logprobs", "include_stop_str_in_output"),
            *("beam_width", "length_penalty"),
        )
    },
}
TENSOR, PARAMETER, JSON, JSON_TEXT = "tensor", "parameter", "json", "json text"
OUTPUTS = (
    "text_output",
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "num_input_tokens",
    "num_output_tokens",
)

HTTP_WAYS = ("infer", "generate", "generate_stream")
GRPC_WAYS = ("grpc", "grpc_stream")


@dataclass(frozen=True)
class Row:
    """A prompt or a chat (JSON), and the options it is asked with under the contract's names."""

    prompt: str = ""
    messages: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Leave:
    """How a caller goes away: ``close`` (its connection, or its call) or ``deadline`` (gRPC's own)
    after some chunks or some seconds, or ``half`` way through sending.
    """

    how: str
    after_chunks: int = 0
    after_s: float = 0.0


@dataclass(frozen=True)
class SoakRequest:
    """One request. ``kind``: ``greedy``, ``seeded``, ``sampled``, ``timed``, ``abandoned`` or
    ``malformed``; ``label`` says what is wrong with a malformed one and ``allowed`` which statuses
    are its answer. ``to_engine``: it goes to the folder that streams. ``places`` says how each
    option is given; ``common`` are options of all rows; ``damage`` names what is done to the
    message after it is packed.
    """

    number: int
    kind: str
    way: str
    model: str
    rows: tuple[Row, ...]
    places: Mapping[str, str] = field(default_factory=dict)
    common: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    batched: bool = False
    to_engine: bool = False
    leave: Leave | None = None
    label: str = ""
    allowed: tuple[int, ...] = ()
    damage: str = ""

    @property
    def served_name(self) -> str:
        """The model that Triton knows."""
        return f"{self.model}_stream" if self.to_engine else self.model

    @property
    def num_choices(self) -> int:
        """The ``n`` that all rows share."""
        return int(self.rows[0].options.get("n", 1))


@dataclass(frozen=True)
class Tensor:
    """Rows of values; a request to an unbatched model has one row."""

    data_type: str
    rows: list[list[Any]]


@dataclass(frozen=True)
class Fields:
    """A request's tensors and parameters by name."""

    tensors: dict[str, Tensor]
    parameters: dict[str, Any]


def fields_of(request: SoakRequest) -> Fields:
    """Every option where ``places`` wants it. Rows that lack an option that others have give it as
    JSON: a tensor has a value in each row.
    """
    tensors: dict[str, Tensor] = {}
    parameters: dict[str, Any] = {}
    for name in ("text_input", "messages"):
        values = [row.prompt if name == "text_input" else row.messages for row in request.rows]
        if any(values):
            tensors[name] = Tensor("BYTES", [[value] for value in values])
    for name, value in request.common.items():
        _place(request, name, [value] * len(request.rows), tensors, parameters)
    names = dict.fromkeys(name for row in request.rows for name in row.options)
    for name in names:
        if request.places.get(name, JSON) in (TENSOR, PARAMETER):
            values = [row.options[name] for row in request.rows]
            _place(request, name, values, tensors, parameters)
    texts = [_sampling_parameters(row, request.places) for row in request.rows]
    if any(text != "{}" for text in texts):
        tensors["sampling_parameters"] = Tensor("BYTES", [[text] for text in texts])
    return Fields(tensors, parameters)


def _place(
    request: SoakRequest,
    name: str,
    values: list[Any],
    tensors: dict[str, Tensor],
    parameters: dict[str, Any],
) -> None:
    if request.places.get(name) == PARAMETER or name not in DATA_TYPES:
        value = values[0]
        parameters[name] = value[0] if isinstance(value, list) and len(value) == 1 else value
    elif name in LISTS:
        longest = max(1, *(len(value) for value in values))
        rows = [[*value, *[""] * (longest - len(value))] for value in values]
        tensors[name] = Tensor("BYTES", rows)
    else:
        tensors[name] = Tensor(DATA_TYPES[name], [[value] for value in values])


def _sampling_parameters(row: Row, places: Mapping[str, str]) -> str:
    values = {}
    for name, value in row.options.items():
        place = places.get(name, JSON)
        if place == JSON_TEXT:
            value = str(value).lower() if isinstance(value, bool) else value
            value = str(value) if isinstance(value, int | float) else value
        if place in (JSON, JSON_TEXT):
            values[JSON_NAMES.get(name, name)] = value
    return json.dumps(values, ensure_ascii=False)


@dataclass(frozen=True)
class HttpMessage:
    """What goes to the server, but for ``Content-Length`` where ``headers`` have one already."""

    path: str
    body: bytes
    method: str = "POST"
    headers: tuple[str, ...] = ()

    def packed(self) -> bytes:
        head = [f"{self.method} {self.path} HTTP/1.1", "Host: triton", *self.headers]
        if not any(header.startswith("Content-Length") for header in self.headers):
            head.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*head, "", ""]).encode() + self.body
