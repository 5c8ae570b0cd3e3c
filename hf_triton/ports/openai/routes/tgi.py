"""``/generate``, ``/generate_stream`` and ``POST /``: text-generation-inference's API. A prompt is
one of a completion; here its parameters are read, and its answer is written token by token.

https://github.com/huggingface/text-generation-inference/blob/main/docs/openapi.json
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import Answer, Choice, Endpoint, Writer, sse
from hf_triton.ports.openai.routes.choices import CompletionRequest
from hf_triton.ports.openai.schema.body import (
    Count,
    Filled,
    Json,
    also,
    only,
    present,
    read,
    refused,
)
from hf_triton.ports.openai.schema.errors import ApiError, Names, bad_field, renamed
from hf_triton.ports.openai.schema.request import SAMPLING, GenerationRequest, TensorValue, asked

_SAME = ("temperature", "top_k", "top_p", "repetition_penalty", "frequency_penalty", "stop", "seed")


@also(
    {
        **{name: SAMPLING[name] for name in _SAME},
        "watermark": Annotated[Any, only(False)],
        **dict.fromkeys(("best_of", "num_return_sequences"), Annotated[Any, only(1)]),
        **dict.fromkeys(("max_tokens", "max_length"), refused("send max_new_tokens")),
        "stop_sequences": refused("send stop"),
        **dict.fromkeys(
            ("top_n_tokens", "decoder_input_details"),
            refused("send logprobs to /v1/completions, with echo for the prompt's", False, 0),
        ),
    }
)
class Parameters(Struct, kw_only=True):
    max_new_tokens: Count | None = None
    truncate: Count | None = None
    do_sample: bool | None = None
    return_full_text: bool | None = None
    details: bool | None = None
    grammar: Json | None = None
    adapter_id: str | None = None


class GenerateRequest(Struct, kw_only=True):
    inputs: Filled
    model: str | None = None
    parameters: Parameters | None = None
    stream: bool | None = None


class GeneratedToken(Struct):
    """A special one adds nothing to the text; ``text`` is its own, or its part of a stream's."""

    id: int
    text: str
    logprob: float | None
    special: bool


class GeneratedDetails(Struct, kw_only=True):
    """A stream has no tokens here; the prompt's in ``prefill`` are left out."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[GeneratedToken] | UnsetType = UNSET
    tokens: list[GeneratedToken] | UnsetType = UNSET
    input_length: int | UnsetType = UNSET


class Generated(Struct):
    generated_text: str
    details: GeneratedDetails | UnsetType = UNSET


class TokenEvent(Struct, kw_only=True):
    token: GeneratedToken
    index: int = 0
    generated_text: str | None = None
    details: GeneratedDetails | None = None


# TGI's names for a completion's fields.
_OWN = renamed(
    {
        **{name: f"parameters.{name}" for name in Parameters.__struct_fields__},
        "prompt": "inputs",
        "max_tokens": "parameters.max_new_tokens",
        "truncate_prompt_tokens": "parameters.truncate",
        "response_format": "parameters.grammar",
        "lora_name": "parameters.adapter_id",
    }
)


def read_generate(body: Mapping[str, Any], stream: bool | None = None) -> GenerationRequest:
    """Without ``stream`` the body says whether to stream. Raises ApiError, 400."""
    given = read(GenerateRequest, body)
    stream = bool(given.stream) if stream is None else stream
    try:
        return _asked(given, given.parameters or Parameters(), stream)
    except ApiError as error:
        raise Names(_OWN).of(error) from None


def _asked(body: GenerateRequest, given: Any, stream: bool) -> GenerationRequest:
    details = bool(given.details)
    # As in TGI, tokens are drawn where any option asks for it.
    asks = not {given.temperature, given.top_p} <= {None, 1}
    samples = bool(given.do_sample or given.top_k or asks)
    same = present(given, *_SAME)
    if not samples:
        same["temperature"] = 0
    elif details:
        same.setdefault("seed", secrets.randbits(53))  # exact in JSON
    fields: Json = {
        **same,
        "max_tokens": given.max_new_tokens,
        "truncate_prompt_tokens": given.truncate,
        "include_stop_str_in_output": True,
    }
    form = _grammar(given.grammar)
    completion = CompletionRequest(
        model=body.model or "any", prompt=body.inputs, stream=stream, response_format=form, **fields
    )
    prompt: Mapping[str, TensorValue] = {"text_input": body.inputs, "exclude_input_in_output": True}
    num_logprobs = 0 if stream or details else None
    lengths = {"clamp_max_tokens": True} if given.max_new_tokens is None else {}
    found = asked(completion, [prompt], lengths, num_logprobs)
    told = {
        "details": details,
        "inputs": body.inputs,
        "full_text": given.return_full_text,
        "seed": same.get("seed") if samples else None,
        "stop": [given.stop] if isinstance(given.stop, str) else given.stop or [],
    }
    known = ":".join(filter(None, (body.model, given.adapter_id)))
    return replace(found, model=known, told=told, names=found.names.then(_OWN))


def _grammar(given: Json | None) -> Json | None:
    """A schema may be sent as a text."""
    if given and given.get("type") == "json" and isinstance(given.get("value"), str):
        try:
            return {**given, "value": json.loads(given["value"])}
        except (ValueError, RecursionError):
            raise bad_field("response_format.value", "a text", "a JSON schema") from None
    return given


class GenerationWriter(Writer):
    """Writes one answer, an event of each token. Where ``is_hubs`` it is a list, if whole, and of a
    model for text-generation begins with the prompt, unless the request says otherwise.
    """

    def __init__(self, answer: Answer, *, is_hubs: bool = False) -> None:
        super().__init__(answer)
        self._is_hubs = is_hubs
        told = self.asked.told
        repeats = is_hubs and answer.task == "text-generation"
        repeats = repeats if told["full_text"] is None else told["full_text"]
        self._prefix = told["inputs"] if repeats else ""
        self._text, self._reason = "", ""
        self._next_index, self._last_id = 1, 0
        self._tokens: list[GeneratedToken] = []

    def add(self, new: Choice) -> list[TokenEvent]:
        """The events of a chunk's tokens; the last one that is not special has all its text."""
        rest = GeneratedToken(self._last_id, "", None, special=False)  # of a text, without tokens
        tokens = self._tokens_of(new) or [rest]
        self._last_id = tokens[-1].id
        for token in tokens:
            token.text = ""
        adding = [token for token in tokens if not token.special] or tokens
        adding[-1].text = new.text
        found = [TokenEvent(token=one, index=n) for n, one in enumerate(tokens, self._next_index)]
        self._next_index += len(found)
        if self._reason:
            last = found[-1]
            last.generated_text = self._prefix + self._text
            if self.asked.told["details"]:
                last.details = self._details()
                last.details.input_length = self.answer.usage().prompt_tokens
        return found

    def take(self, added: Sequence[Choice]) -> None:
        for new in added:
            self._tokens += self._tokens_of(new)

    def result(self) -> Generated | list[Generated]:
        found = Generated(self._prefix + self._text)
        if self.asked.told["details"]:
            found.details = self._details()
            found.details.prefill = []
            found.details.tokens = self._tokens
        return [found] if self._is_hubs else found

    def failed(self, error: ApiError) -> bytes:
        return sse(error.hubs_body())

    def _details(self) -> GeneratedDetails:
        return GeneratedDetails(
            finish_reason=self._reason,
            generated_tokens=self.answer.choices[0].num_tokens,
            seed=self.asked.told["seed"],
        )

    def _tokens_of(self, new: Choice) -> list[GeneratedToken]:
        """The tokens of a chunk; one that ends the answer and adds nothing to it is special."""
        self._text += new.text
        if new.finish_reason == "stop":
            stops = tuple(filter(None, self.asked.told["stop"]))
            self._reason = "stop_sequence" if self._text.endswith(stops) else "eos_token"
        elif new.finish_reason:
            self._reason = "length"
        entries = [one.sampled for one in new.positions or []]
        found = [GeneratedToken(one.id, one.text, one.logprob, special=False) for one in entries]
        if found and self._reason == "eos_token" and not new.text.endswith(found[-1].text):
            found[-1].special = len(found) > 1 or not new.text
        return found


def _endpoint(path: str, summary: str, answer: Any, stream: bool | None = None) -> Endpoint:
    events = () if stream is False else (EVENTS,)
    return Endpoint(
        *((path,), COMPLETION_TASKS, "cmpl-", partial(read_generate, stream=stream)),
        Operation(summary, answer, GenerateRequest, also=events),
        partial(GenerationWriter, is_hubs=path == "/"),
    )


GENERATE = (
    _endpoint("/generate", "Continue a text, as TGI", Generated, stream=False),
    _endpoint("/generate_stream", "The same as a stream", None, stream=True),
)
GENERATE_COMPAT = _endpoint("/", "Continue a text, as TGI and the Hub", list[Generated])
