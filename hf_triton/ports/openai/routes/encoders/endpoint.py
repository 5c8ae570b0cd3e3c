"""Paths whose models compute numbers of texts: their requests, the models' requests for them, and
their answers.

A model without batches takes a list of texts in one request (``input_text``), one with batches
takes rows, at most ``max_batch_size`` of them.
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from msgspec import Meta, Struct

from hf_triton.ports.openai.openapi import Operation
from hf_triton.ports.openai.routes.answers import Endpoint, Usage
from hf_triton.ports.openai.schema.body import only, read
from hf_triton.ports.openai.schema.errors import ApiError, Names, renamed
from hf_triton.ports.openai.schema.request import TensorValue, parameters_of
from hf_triton.ports.openai.triton.tensors import (
    ServedModel,
    add_input,
    new_request,
    outputs_of,
    pack_texts,
    pack_value,
    unpack,
)

MAX_INPUTS = 2048  # OpenAI's
_NUM_TOKENS = "num_input_tokens"
# In errors a model calls its texts so.
_TEXTS = ("text_input", "input_text")
_ROW = re.compile(r"\(row (\d+) of the batch\)")
Texts = str | Annotated[list[str], Meta(min_length=1, max_length=MAX_INPUTS)]


class EncoderRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """``fields`` hold its texts; ``outputs`` of a model answer it, beside the number of tokens."""

    fields: ClassVar[tuple[str, ...]] = ("input",)
    outputs: ClassVar[tuple[str, ...]]

    model: str
    user: Any = None
    cache_salt: str | None = None
    truncate: bool | Literal["END", "NONE"] | None = None  # the texts are NIM's
    truncate_prompt_tokens: Annotated[Any, only(-1)] = None  # vLLM's, as many as the model takes
    priority: Annotated[Any, only(0)] = None
    add_special_tokens: Annotated[Any, only(True)] = None

    @property
    def options(self) -> dict[str, TensorValue]:
        if self.truncate is None:
            return {"truncate": True} if self.truncate_prompt_tokens else {}
        return {"truncate": self.truncate in (True, "END")}

    def of_caller(self) -> Mapping[str, str]:
        return parameters_of(self)

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The texts, and those that they are paired with, if any. Raises ApiError, 400, where
        fields don't go together.
        """
        texts = getattr(self, self.fields[0])
        return [texts] if isinstance(texts, str) else texts, []

    def of_model(
        self,
        model: ServedModel,  # noqa: ARG002, as of pairs
    ) -> tuple[Sequence[str], Mapping[str, TensorValue]]:
        """The outputs that a model is asked for, and the options."""
        return self.outputs, self.options

    async def ask(
        self,
        infer: Callable[[Any], Awaitable[Any]],
        model: ServedModel,
        request_id: str,
        parameters: Mapping[str, str],
    ) -> list[Any]:
        """The ModelInferResponses of every text, in order. Raises ApiError."""
        (texts, pairs), (outputs, options) = self.sides, self.of_model(model)
        wanted = (*outputs, _NUM_TOKENS)
        ones = [1] if model.is_batched else []
        size = model.max_batch_size or len(texts)

        async def ask_for(first: int) -> Any:
            rows = slice(first, first + size)
            request = new_request(model.triton_name, request_id, wanted, parameters)
            names = "text_input" if model.is_batched else "input_text", "text_pair"
            for name, column in zip(names, (texts[rows], pairs[rows]), strict=True):
                if column:
                    add_input(request, name, "BYTES", [len(column), *ones], pack_texts(column))
            num_rows = len(texts[rows]) if model.is_batched else 1
            for name, value in options.items():
                datatype, data = pack_value(value)
                add_input(request, name, datatype, [num_rows, *ones], data * num_rows)
            try:
                return await infer(request)
            except ApiError as error:
                raise self.renamed(error, first) from None

        tasks = [asyncio.ensure_future(ask_for(at)) for at in range(0, len(texts), size)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def answers(self, responses: Iterable[Any], model: ServedModel, answer_id: str) -> Answers:
        """What a model has computed of every text. Raises ApiError."""
        outputs, num_texts = (*self.of_model(model)[0], _NUM_TOKENS), len(self.sides[0])
        rows: dict[str, list[Any]] = {name: [] for name in outputs}
        for response in responses:
            data = outputs_of(response, outputs)
            for tensor in response.outputs:
                rows[tensor.name] += _rows(tensor, data[tensor.name])
        num_tokens = sum(sum(row) for row in rows.pop(_NUM_TOKENS))
        for found in rows.values():
            if len(found) != num_texts:
                raise ApiError(500, f"the model answered {len(found)} of {num_texts} texts")
        return Answers(rows, Usage(num_tokens, num_tokens), answer_id)

    def renamed(self, error: ApiError, first: int) -> ApiError:
        """The error in the caller's names; the request's first text has the number ``first``."""
        row = _ROW.search(error.message)
        index = first + int(row[1] if row else 0)
        known = {**dict.fromkeys(_TEXTS, self.fields[0]), "text_pair": self.fields[-1]}
        told = _ROW.sub(f"(row {index} of the batch)", error.message)
        return Names(renamed(known)).of(replace(error, message=told))

    def write(self, answers: Answers) -> Any:
        """The answer, for JSON. Raises ApiError."""
        raise NotImplementedError


class TeiRequest(EncoderRequest, kw_only=True):
    """TEI truncates unless told otherwise."""

    model: str | None = None  # type: ignore[assignment]

    @property
    def options(self) -> dict[str, TensorValue]:
        return {"truncate": True, **super().options}


class Listed(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Any]
    usage: Usage


@dataclass(frozen=True)
class Answers:
    rows: Mapping[str, list[Any]]
    usage: Usage
    answer_id: str = ""


def encoder(
    paths: tuple[str, ...],
    tasks: Sequence[str],
    id_prefix: str,
    bodies: type[EncoderRequest] | tuple[type[EncoderRequest], ...],
    summary: str = "",
    *,
    fits: Callable[[Mapping[str, Any]], type[EncoderRequest]] | None = None,
) -> Endpoint:
    """Paths whose models compute numbers of texts; ``fits`` chooses among several bodies."""
    every = bodies if isinstance(bodies, tuple) else (bodies,)
    answer = reduce(or_, [get_type_hints(body.write)["return"] for body in every])

    def read_body(given: Mapping[str, Any]) -> EncoderRequest:
        found = read(fits(given) if fits else every[0], given)
        _ = found.sides
        return found

    return Endpoint(paths, tasks, id_prefix, read_body, Operation(summary, answer, bodies))


def _rows(tensor: Any, data: bytes) -> list[Any]:
    """An output's rows; where it has one dimension each element is one. With three, a row is a list
    of vectors, and those of zeros at its end are left out: there the text has no more tokens.
    """
    if tensor.name == _NUM_TOKENS:
        return [unpack("UINT32", data)]
    is_float = tensor.datatype == "FP32"
    values: Any = array("f", data) if is_float else unpack(tensor.datatype, data)
    if is_float and not math.isfinite(sum(values)):
        raise ApiError(500, "the model computed a score that is not a number")
    size = tensor.shape[-1]
    if not size:
        return [[] for _ in range(tensor.shape[0])] if len(tensor.shape) > 1 else []
    found = [values[at : at + size] for at in range(0, len(values), size)]
    if len(tensor.shape) < 3:
        return found
    longest = tensor.shape[1]
    texts = [found[at : at + longest] for at in range(0, len(found), longest)]
    lengths = [max((n for n, one in enumerate(text, 1) if any(one)), default=0) for text in texts]
    return [text[:length] for text, length in zip(texts, lengths, strict=True)]
