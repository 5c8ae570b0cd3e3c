"""Errors name the fields that a caller sent, whatever they become on the way to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import inspect

from hf_triton.ports.openai.app import GENERATING
from hf_triton.ports.openai.routes.answers import Endpoint
from hf_triton.ports.openai.routes.encoders.rankings import ENCODING
from hf_triton.ports.openai.schema.errors import ApiError, top
from hf_triton.ports.openai.schema.request import GenerationRequest
from hf_triton.ports.openai.triton.client import of_text
from hf_triton.runtime.errors import RequestError
from tests.model.engine.requests.test_chat import CHATML, template
from tests.support.request_fields import fields, parse_request
from tests.unit.requests.test_request import READER

LONG = "x" * 2**20
VALUES: list[Any] = [
    *(5, 3, -3, 2**40, 10**40, 0.5, 1e300, True, False),
    *("", "x", "x" * 300, LONG),
    *([], [1], [-1], [2**40], ["a"], ["a" * 300], [{}], [[1]], [*range(10_001)], ["a"] * 3000),
    *({}, {"a": 1}, {"5": 1e9}, {"type": "json_schema"}, {"json": LONG}, {"regex": 5}),
    *([{"role": 5, "content": "x"}], [{"role": "user", "content": 5}]),
]
CHAT = [{"role": "user", "content": "a"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a", "max_tokens": 9},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": CHAT, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": CHAT},
    "/tokenize": {"messages": CHAT},
    "/detokenize": {"tokens": [5]},
    "/v1/embeddings": {"input": "a"},
    **{path: {"inputs": ["a"]} for path in ("/embed", "/embed_sparse", "/embed_all")},
    **{path: {"inputs": "a"} for path in ("/generate", "/generate_stream", "/predict")},
    "/v1/rerank": {"query": "a", "documents": ["a"]},
    "/v1/ranking": {"query": {"text": "a"}, "passages": [{"text": "a"}]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["a"]}},
    "/score": {"text_1": "a", "text_2": "a"},
    "/classify": {"input": "a"},
}
# Fields without which another field's value does not count.
BESIDE: dict[str, dict[str, Any]] = {
    "/v1/completions stream_options": {"stream": True},
    "/v1/chat/completions top_logprobs": {"logprobs": True},
    "/v1/responses top_logprobs": {"include": ["message.output_text.logprobs"]},
    "/tokenize prompt": {"messages": None},
}
MOST = 2000  # tokens of the context


def check_length(num_prompt_tokens: int, max_tokens: int) -> None:
    if num_prompt_tokens + max_tokens > MOST:
        raise RequestError(
            f"max_tokens: the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}"
            f", together too many; this model's context holds {MOST}"
        )


MODEL = replace(
    READER,
    check_length=check_length,
    output_length=lambda _, asked, clamps: 16 if asked is None else asked,
    chat=template(CHATML),
)


@dataclass(frozen=True)
class Door:
    """One path, and the fields that it declares."""

    path: str
    endpoint: Endpoint

    def error(self, **body: Any) -> ApiError | None:
        """A request's error, by the port or by the model that gets it."""
        try:
            asked = self.endpoint.read({"model": "m", **BASES[self.path], **body})
        except ApiError as error:
            return error
        try:
            for inputs in asked.inputs if isinstance(asked, GenerationRequest) else ():
                self._ask(inputs)
        except RequestError as error:
            named: ApiError = asked.names.of(of_text(str(error)))
            return named
        return None

    def _ask(self, inputs: Mapping[str, Any]) -> None:
        parameters = {name: inputs[name] for name in ("user", "cache_salt") if name in inputs}
        rest = {name: one for name, one in inputs.items() if name not in {*parameters, "tokenizer"}}
        lists = {name: [*one] if isinstance(one, tuple) else [one] for name, one in rest.items()}
        parse_request(fields(lists, parameters), MODEL)


ASKED = (*GENERATING, *ENCODING)
DOORS = [Door(one.paths[0], one) for one in ASKED if len(one.operation.bodies) == 1]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.path)
def test_an_error_begins_with_the_field_that_was_sent(door: Door) -> None:
    info: Any = inspect.type_info(door.endpoint.operation.body)
    wrong = []
    for field in info.fields:
        name = field.encode_name
        beside = BESIDE.get(f"{door.path} {name}", {})
        errors = [door.error(**{**beside, name: value}) for value in VALUES]
        told = [
            (error.param or "", error.message)
            for error in errors
            if error and error.code != "context_length_exceeded"
        ]
        rules = getattr(field.type, "extra", None) or {}
        takes_all = isinstance(getattr(field.type, "type", field.type), inspect.AnyType)
        assert told or (takes_all and not rules), f"{name}: everything is taken"
        wrong += [
            f"{name}: {param}: {message[:100]}"
            for param, message in told
            if top(param) != name or not message.startswith(name)
        ]
    assert not wrong, "\n".join(wrong)


PICTURE = {"type": "base64", "media_type": "image/png", "data": "?"}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "sun"}
TOOL = {"name": "f", "input_schema": {"type": "string"}}


@pytest.mark.parametrize(
    "path, body, place",
    [
        ("/v1/messages", {"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ("/v1/messages", {"tools": [{**TOOL, "input_schema": 5}]}, "tools[0].input_schema"),
        (
            "/v1/messages",
            {"tools": [TOOL], "tool_choice": {"type": "any"}},
            "tools[0].input_schema.type",
        ),
        (
            "/v1/messages",
            {
                "system": "Be short.",
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": [USE]},
                    {
                        "role": "user",
                        "content": [
                            *(RESULT, {"type": "text", "text": "b"}),
                            {"type": "image", "source": PICTURE},
                        ],
                    },
                ],
            },
            "messages[2].content[2].source",
        ),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": {"a": LONG}}}},
            "output_config.format.schema",
        ),
        ("/v1/responses", {"tools": [{"type": "function", "name": 5}]}, "tools[0].name"),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "schema": {"a": LONG}}}},
            "text.format.schema",
        ),
        (
            "/v1/completions",
            {"structured_outputs": {"regex": "x" * 20_000}},
            "structured_outputs.regex",
        ),
        ("/v1/completions", {"guided_choice": ["a", "a"]}, "guided_choice"),
        (
            "/v1/chat/completions",
            {"guided_json": "{", "guided_regex": "a"},
            "guided_json and guided_regex",
        ),
        ("/v1/chat/completions", {"top_logprobs": 10**6, "logprobs": True}, "top_logprobs"),
        ("/v1/chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("/tokenize", {"add_generation_prompt": True, "continue_final_message": True}, "continue"),
    ],
    ids=str,
)
def test_an_errors_place_is_the_callers(path: str, body: dict[str, Any], place: str) -> None:
    [door] = [door for door in DOORS if door.path == path]
    error = door.error(**body)
    assert error is not None
    assert error.message.startswith(place), error.message
