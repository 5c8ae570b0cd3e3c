"""``/generate``, ``/generate_stream`` and ``POST /``: text-generation-inference's API. A prompt is
one of a completion; here its parameters are read, and its answer is written token by token.

https://github.com/huggingface/text-generation-inference/blob/main/docs/openapi.json
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from generator.spec.task_sets import COMPLETION_TASKS
from hf_triton.ports.openai.openapi_schema import answers
from hf_triton.ports.openai.openapi_schema.operation import EVENTS, Operation
from hf_triton.ports.openai.routes.answers import Answer, Chunks, aside, sse
from hf_triton.ports.openai.routes.endpoint import Endpoint
from hf_triton.ports.openai.schema import json_body
from hf_triton.ports.openai.schema.api import Choice
from hf_triton.ports.openai.schema.body import Body, object_of
from hf_triton.ports.openai.schema.errors import ApiError, bad_field
from hf_triton.ports.openai.schema.hub_errors import error_body
from hf_triton.ports.openai.schema.json_body import ignored, only, refused
from hf_triton.ports.openai.schema.logprobs import Entry, Position
from hf_triton.ports.openai.schema.names import Names, by_field
from hf_triton.ports.openai.schema.request import SAMPLING, GenerationRequest, TensorValue, asked

Json = dict[str, Any]
_SAME = ("temperature", "top_k", "top_p", "repetition_penalty", "frequency_penalty", "stop", "seed")
PARAMETERS = Body(
    {
        "max_new_tokens": json_body.count,
        **{name: SAMPLING[name] for name in _SAME},
        "top_n_tokens": json_body.integer,
        "truncate": json_body.count,
        **dict.fromkeys(("do_sample", "return_full_text"), json_body.boolean),
        **dict.fromkeys(("details", "decoder_input_details"), json_body.boolean),
        "grammar": json_body.json_object,
        "adapter_id": json_body.text,
        # LangChain sends 0.95 of itself.
        "typical_p": ignored,
        "watermark": only(False),
        "best_of": only(1),
        "num_return_sequences": only(1),
        **dict.fromkeys(("max_tokens", "max_length"), refused("send max_new_tokens")),
        "stop_sequences": refused("send stop"),
    },
    (),
    is_strict=False,
)
BODY = Body(
    {
        "model": json_body.text,
        "inputs": json_body.filled,
        "parameters": object_of(PARAMETERS),
        "stream": json_body.boolean,
        # Of the Hub's own servers: whether to wait for a model, and to keep answers.
        "options": ignored,
    },
    ("inputs",),
    is_strict=False,
)
# What the parts of a completion are called here.
_OWN = by_field(
    {
        **{name: f"parameters.{name}" for name in PARAMETERS.fields},
        "prompt": "inputs",
        "max_tokens": "parameters.max_new_tokens",
        "truncate_prompt_tokens": "parameters.truncate",
        "response_format": "parameters.grammar",
        "prompt_logprobs": "parameters.decoder_input_details",
        "logprobs": "parameters.top_n_tokens",
        "lora_name": "parameters.adapter_id",
    }
)


def read(body: Mapping[str, Any], stream: bool | None = None) -> GenerationRequest:
    """What the request asks for; without ``stream`` the body says it. Raises ApiError, 400."""
    body = BODY.check(body)
    if "inputs" not in body:
        raise bad_field("inputs", "none", "a text")
    given = body.get("parameters", {})
    stream = body.get("stream", False) if stream is None else stream
    try:
        return _asked(body["inputs"], given, bool(stream), body.get("model", ""))
    except ApiError as error:
        raise Names(_OWN).of(error) from None


def _asked(inputs: str, given: Mapping[str, Any], stream: bool, model: str) -> GenerationRequest:
    num_top, prefill = given.get("top_n_tokens", 0), given.get("decoder_input_details", False)
    if stream and prefill:
        raise bad_field("decoder_input_details", "true", "only without a stream")
    details = given.get("details", False) or prefill
    samples = _samples(given)
    same = {name: given[name] for name in _SAME if name in given}
    if not samples:
        same["temperature"] = 0
    elif details:
        same.setdefault("seed", secrets.randbits(53))  # of which JSON loses nothing
    body = {
        **same,
        "model": model or "any",
        "prompt": inputs,
        "stream": stream,
        "max_tokens": given.get("max_new_tokens"),
        "truncate_prompt_tokens": given.get("truncate"),
        "response_format": _grammar(given.get("grammar")),
        "include_stop_str_in_output": True,
    }
    prompt: Mapping[str, TensorValue] = {"text_input": inputs, "exclude_input_in_output": True}
    num_logprobs = num_top if stream or details else None
    lengths = {} if "max_new_tokens" in given else {"clamp_max_tokens": True}
    body = {name: value for name, value in body.items() if value is not None}
    read = asked(body, [prompt], lengths, num_logprobs, echoes=prefill)
    told = {
        "details": details,
        "inputs": inputs,
        "full_text": given.get("return_full_text"),
        "seed": same.get("seed") if samples else None,
        "stop": given.get("stop", []),
    }
    known = ":".join(filter(None, (model, given.get("adapter_id"))))
    return replace(read, model=known, told=told, names=read.names.then(_OWN))


def _samples(given: Mapping[str, Any]) -> bool:
    """Whether tokens are drawn: as that server has it, where something asks for it."""
    asks = any(given.get(name, 1) != 1 for name in ("temperature", "top_p"))
    return bool(given.get("do_sample") or given.get("top_k") or asks)


def _grammar(given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A schema may be sent as a text."""
    if given and given.get("type") == "json" and isinstance(given.get("value"), str):
        try:
            return {**given, "value": json.loads(given["value"])}
        except (ValueError, RecursionError):
            raise bad_field("response_format.value", "a text", "a JSON schema") from None
    return given


class GenerationWriter:
    """Writes one answer. Where ``is_hubs`` it is a list, if whole, and of a model for
    text-generation begins with the prompt, unless the request says otherwise.
    """

    def __init__(self, answer: Answer, *, is_hubs: bool = False) -> None:
        self._answer, self._asked = answer, answer.asked
        self._is_hubs = is_hubs
        told = answer.asked.told
        repeats = is_hubs and answer.task == "text-generation"
        repeats = repeats if told["full_text"] is None else told["full_text"]
        self._prefix = told["inputs"] if repeats else ""
        self._text, self._reason = "", ""
        self._last_id = 0

    async def whole(self, chunks: Chunks) -> Any:
        """As one object. Raises ApiError."""
        prefill: list[Json] = []
        tokens: list[Json] = []
        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                for new in await self._answer.read(prompt, chunk):
                    prefill += self._take_prefill(new)
                    tokens += await aside(chunk.num_bytes, partial(self._take, new))
        self._answer.check_complete()
        found: Json = {"generated_text": self._generated}
        if self._asked.told["details"]:
            top = [event["top_tokens"] for event in tokens if "top_tokens" in event]
            told = {"prefill": prefill, "tokens": [event["token"] for event in tokens]}
            found["details"] = {**self._details(), **told, **({"top_tokens": top} if top else {})}
        return [found] if self._is_hubs else found

    async def events(self, chunks: Chunks) -> AsyncGenerator[bytes, None]:
        """An event of each token. Raises ApiError."""
        index = 0
        async with aclosing(chunks):
            async for prompt, chunk in chunks:
                for new in await self._answer.read(prompt, chunk):
                    found = self._take(new)
                    for event in found:
                        index += 1
                        event |= {"index": index, "generated_text": None, "details": None}
                    if self._reason:
                        found[-1] |= self._end()
                    yield b"".join(map(sse, found))
        self._answer.check_complete()

    def failed(self, error: ApiError) -> bytes:
        """The error as an event."""
        return sse(error_body(error))

    @property
    def _generated(self) -> str:
        return f"{self._prefix}{self._text}"

    def _details(self) -> Json:
        return {
            "finish_reason": self._reason,
            "generated_tokens": self._answer.choices[0].num_tokens,
            "seed": self._asked.told["seed"],
        }

    def _end(self) -> Json:
        """What the last event has."""
        length = {"input_length": self._answer.usage()["prompt_tokens"]}
        details = {**self._details(), **length} if self._asked.told["details"] else None
        return {"generated_text": self._generated, "details": details}

    def _take_prefill(self, new: Choice) -> list[Json]:
        """The prompt's tokens, whose positions come before the answer's."""
        if not self._asked.echoes or new.positions is None:
            return []
        num_prompt = len(new.positions) - new.num_tokens
        told, new.positions = new.positions[:num_prompt], new.positions[num_prompt:]
        return [_token(one.sampled, one.sampled.text) for one in told]

    def _take(self, new: Choice) -> list[Json]:
        """The tokens that a chunk brings, with the text that each adds to the answer's; the one
        that ends it, and adds none, is special.
        """
        self._text += new.text
        if new.finish_reason:
            self._reason = self._reason_of(new.finish_reason)
        positions = new.positions or []
        entries = [one.sampled for one in positions]
        if not entries and self._asked.stream:  # a rest of the text
            entries = [Entry(new.text, None, 1, id=self._last_id)]
        self._last_id = entries[-1].id if entries else 0
        is_special = self._reason == "eos_token" and _adds_nothing(entries, new.text)
        pieces = _pieces(new.text, entries[:-1] if is_special else entries)
        texts = [*pieces, ""] if is_special else pieces
        last = len(entries) - 1
        found: list[Json] = [
            {"token": {**_token(entry, text), "special": is_special and at == last}}
            for at, (entry, text) in enumerate(zip(entries, texts, strict=False))
        ]
        for event, position in zip(found, positions, strict=False):
            event |= _top(position, self._asked.num_logprobs or 0)
        return found

    def _reason_of(self, reason: str) -> str:
        if reason != "stop":
            return "length"
        stops = tuple(filter(None, self._asked.told["stop"]))
        return "stop_sequence" if self._text.endswith(stops) else "eos_token"


def _token(entry: Entry, text: str) -> Json:
    return {"id": entry.id, "text": text, "logprob": entry.logprob}


def _top(position: Position, num_top: int) -> Json:
    """The likeliest tokens at a place, where they are wanted."""
    ranked = (one for one in position.all if one.rank <= num_top)
    found = [{**_token(one, one.text), "special": False} for one in ranked]
    return {"top_tokens": found} if found else {}


def _adds_nothing(entries: Sequence[Entry], text: str) -> bool:
    """Whether the last of a chunk's tokens is no part of its text."""
    is_alone = len(entries) == 1
    return bool(entries) and not text.endswith(entries[-1].text) and not (is_alone and text)


def _pieces(text: str, entries: Sequence[Entry]) -> list[str]:
    """The part of a text that is each token's, with the space that a vocabulary leaves out before
    it; what can't be told belongs to the last.
    """
    pieces = []
    for entry in entries[:-1]:
        at = text.find(entry.text, 0, len(entry.text) + 1)
        end = at + len(entry.text) if at >= 0 else 0
        pieces.append(text[:end])
        text = text[end:]
    return [*pieces, text]


def _endpoint(path: str, summary: str, answer: Any, **how: Any) -> Endpoint:
    also = (EVENTS,) if how.get("stream") is not False else ()
    return Endpoint(
        *(path, COMPLETION_TASKS, "cmpl-", partial(read, **how)),
        partial(GenerationWriter, is_hubs=path == "/"),
        Operation(summary, answer, BODY, also=also, error=answers.HubError),
        by_model=True,
    )


GENERATE = (
    _endpoint("/generate", "Continue a text, as TGI", answers.Generated, stream=False),
    _endpoint("/generate_stream", "The same as a stream", None, stream=True),
)
GENERATE_COMPAT = _endpoint("/", "Continue a text, as TGI and the Hub", answers.Generations)
