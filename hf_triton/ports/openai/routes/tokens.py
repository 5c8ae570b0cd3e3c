"""``/tokenize`` and ``/detokenize``, as vLLM has them: what a tokenizer says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from msgspec import Struct

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi import Operation
from hf_triton.ports.openai.routes.answers import Answer, Chunks, Endpoint, Writer
from hf_triton.ports.openai.routes.choices import ask_chat
from hf_triton.ports.openai.schema.body import Integers, Json, JsonList, present, read
from hf_triton.ports.openai.schema.errors import Names, bad_field, renamed
from hf_triton.ports.openai.schema.request import Chat, GenerationRequest, TensorValue
from hf_triton.runtime.request.request_parameters import TOKENIZER_QUESTION

_PROMPT = ("messages", "tools", "chat_template_kwargs")
_TEMPLATE = ("add_generation_prompt", "continue_final_message")


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's, of a prompt or of a chat; the last two fields are arguments of a chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: JsonList | None = None
    tools: list[Json] | None = None
    chat_template_kwargs: Json | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: Integers
    model: str | None = None


class Tokens(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Struct):
    prompt: str


def _question(
    model: str, ask: Json, prompt: Mapping[str, TensorValue], own: Mapping[str, str]
) -> GenerationRequest:
    """A request that the tokenizer of ``model`` answers, without a name that of the only one."""
    inputs = {**prompt, TOKENIZER_QUESTION: json.dumps(ask)}
    return GenerationRequest(model, (inputs,), names=Names(renamed(own)))


def of_chat(read: GenerationRequest, **options: Any) -> GenerationRequest:
    prompt = {name: value for name, value in read.inputs[0].items() if name in _PROMPT}
    found = _question(read.model, {"ask": "tokenize", **options}, prompt, {})
    return replace(found, names=read.names, media=read.media)


class TokenizerWriter(Writer):
    def __init__(self, answer: Answer, write: Callable[[Json], Any] = dict) -> None:
        super().__init__(answer)
        self._write = write

    async def whole(self, chunks: Chunks) -> Any:
        async with aclosing(chunks):
            told = [json.loads(chunk.texts[0]) async for _, chunk in chunks]
        return self._write(told[0])


def _read_tokenize(given: Mapping[str, Any]) -> GenerationRequest:
    body = read(TokenizeRequest, given)
    options = present(body, "add_special_tokens", "return_token_strs")
    if body.prompt is None and body.messages is None:
        raise bad_field("prompt", "none", "a text, or messages")
    if body.prompt is None:
        common = {name: getattr(body, name) for name in (*_PROMPT, *_TEMPLATE)}
        # The model is chosen later.
        found = ask_chat(Chat(model=body.model or "any", **common))
        names = replace(found.names, advice={"send text_input": "send prompt"})
        return replace(of_chat(found, **options), model=body.model or "", names=names)
    for name in (*_PROMPT, "continue_final_message"):
        if getattr(body, name):
            raise bad_field(name, "a value", "none with prompt")
    ask = {"ask": "tokenize", **options}
    return _question(body.model or "", ask, {"text_input": body.prompt}, {"text_input": "prompt"})


def _read_detokenize(given: Mapping[str, Any]) -> GenerationRequest:
    body = read(DetokenizeRequest, given)
    tokens = {"text_input": json.dumps(body.tokens)}
    return _question(body.model or "", {"ask": "detokenize"}, tokens, {"text_input": "tokens"})


TOKENS = (
    Endpoint(
        *(("/tokenize",), COMPLETION_TASKS, "tok-", _read_tokenize),
        Operation("The tokens of a prompt or a chat", Tokens, TokenizeRequest),
        TokenizerWriter,
    ),
    Endpoint(
        *(("/detokenize",), COMPLETION_TASKS, "tok-", _read_detokenize),
        Operation("The text of tokens", Detokenized, DetokenizeRequest),
        TokenizerWriter,
    ),
)
