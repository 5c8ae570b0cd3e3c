"""``/tokenize``, ``/detokenize``, ``/tokenizer_info``, as vLLM has them: what a tokenizer says."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from generator.spec.runtime_rules import TOKENIZER_QUESTION
from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi_schema import answers
from hf_triton.ports.openai.openapi_schema.operation import Operation
from hf_triton.ports.openai.routes import chat
from hf_triton.ports.openai.routes.answers import Answer, Chunks
from hf_triton.ports.openai.routes.endpoint import Endpoint
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.body import Body
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.media import MediaPart
from hf_triton.ports.openai.schema.names import Names, by_field
from hf_triton.ports.openai.schema.request import GenerationRequest, TensorValue

Json = dict[str, Any]
_PROMPT = ("messages", "tools", "chat_template_kwargs")
_TEMPLATE = ("add_generation_prompt", "continue_final_message")  # arguments of a chat template
_OPTIONS = ("add_special_tokens", "return_token_strs")
_TOKENIZE = Body(
    {
        "model": json_body.text,
        "prompt": json_body.text,
        "messages": json_body.json_list,
        "tools": json_body.objects,
        "chat_template_kwargs": json_body.json_object,
        **dict.fromkeys((*_TEMPLATE, *_OPTIONS), json_body.boolean),
    },
    (),
)
_DETOKENIZE = Body({"model": json_body.text, "tokens": json_body.integers}, ("tokens",))


def _question(
    model: str,
    ask: Mapping[str, Any],
    prompt: Mapping[str, TensorValue],
    names: Names,
    media: tuple[MediaPart, ...] = (),
) -> GenerationRequest:
    """A request that is answered by a model's tokenizer; without a ``model`` by the only one."""
    inputs = {**prompt, TOKENIZER_QUESTION: json.dumps(ask)}
    return GenerationRequest(
        *(model, (inputs,)),
        n=1,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        num_logprobs=None,
        media=media,
        names=names,
    )


def of_chat(read: GenerationRequest, **options: Any) -> GenerationRequest:
    """A question for the tokens of a chat's prompt."""
    prompt = {name: value for name, value in read.inputs[0].items() if name in _PROMPT}
    return _question(read.model, {"ask": "tokenize", **options}, prompt, read.names, read.media)


@dataclass(frozen=True)
class Told:
    """Writes what the tokenizer told."""

    answer: Answer
    write: Callable[[Json], Json] = dict

    async def whole(self, chunks: Chunks) -> Json:
        """As one object. Raises ApiError."""
        async with aclosing(chunks):
            told = [json.loads(chunk.texts[0]) async for _, chunk in chunks]
        if not told:
            raise ApiError(500, "the model's answer broke off")
        return self.write(told[0])

    def events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """Never asked for: nothing of this is streamed."""
        raise NotImplementedError

    def failed(self, error: ApiError) -> bytes:
        """As ``events``."""
        raise NotImplementedError


def _read_tokenize(body: Mapping[str, Any]) -> GenerationRequest:
    _TOKENIZE.check(body)
    options = {name: body[name] for name in _OPTIONS if body.get(name) is not None}
    prompt, model = body.get("prompt"), body.get("model") or ""
    if prompt is None and body.get("messages") is None:
        raise bad_field("prompt", "none", "a text, or messages")
    if prompt is None:
        given = {name: body.get(name) for name in (*_PROMPT, *_TEMPLATE)}
        # Which model it is, is chosen later.
        read = chat.read({**given, "model": model or "any"})
        names = replace(read.names, advice={"send text_input": "send prompt"})
        return replace(of_chat(read, **options), model=model, names=names)
    for name in (*_PROMPT, "continue_final_message"):
        if body.get(name):
            raise bad_field(name, "a value", "none with prompt")
    ask = {"ask": "tokenize", **options}
    return _question(model, ask, {"text_input": prompt}, _names("prompt"))


def _read_detokenize(body: Mapping[str, Any]) -> GenerationRequest:
    _DETOKENIZE.check(body)
    if body.get("tokens") is None:
        raise bad_field("tokens", "none", "a list of integers")
    tokens = {"text_input": json.dumps(body["tokens"])}
    return _question(body.get("model") or "", {"ask": "detokenize"}, tokens, _names("tokens"))


def _read_info(query: Mapping[str, Any]) -> GenerationRequest:
    return _question(query.get("model") or "", {"ask": "info"}, {"text_input": "-"}, Names())


def _names(name: str) -> Names:
    return Names(by_field({"text_input": name}))


TOKENS = (
    Endpoint(
        *("/tokenize", COMPLETION_TASKS, "tok-", _read_tokenize, Told),
        Operation("The tokens of a prompt or a chat", answers.Tokens, _TOKENIZE),
    ),
    Endpoint(
        *("/detokenize", COMPLETION_TASKS, "tok-", _read_detokenize, Told),
        Operation("The text of tokens", answers.Detokenized, _DETOKENIZE),
    ),
    Endpoint(
        *("/tokenizer_info", COMPLETION_TASKS, "tok-", _read_info, Told),
        Operation("How the tokenizer is configured: ?model=NAME", answers.TokenizerInfo),
    ),
)
