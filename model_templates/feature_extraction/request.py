"""A request for embeddings, read from its tensors; knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hf_encoder.texts.row_values import filled, required_texts
from hf_runtime.errors import RequestError
from hf_runtime.request.tensors import RequestFields, boolean, each_row, integer, text

INPUTS = (
    *("text_input", "input_text", "prompt_name", "dimensions"),
    *("return_num_input_tokens", "truncate"),
)


@dataclass(frozen=True)
class EmbeddingRow:
    """One text. ``field`` is the tensor that it came in."""

    field: str
    text: str
    prompt_name: str | None
    dimensions: int | None
    truncate: bool | None


@dataclass(frozen=True)
class EmbeddingRequest:
    """``is_batch``: the answer has a dimension for the texts before those of one text's."""

    rows: tuple[EmbeddingRow, ...]
    is_batch: bool
    wants_num_input_tokens: bool


def read_request(fields: RequestFields, *, batched: bool) -> EmbeddingRequest:
    """The texts and what is asked for each; ``batched`` where max_batch_size is above 0.

    Raises:
        RequestError: no text, an empty one, one that is no UTF-8, or an option of a wrong kind.
    """
    fields.check_parameters(INPUTS)
    fields.count_rows(*INPUTS)
    is_list = not batched and fields.has_tensor("input_text")
    columns = zip(
        fields.values("prompt_name", text, None),
        fields.values("dimensions", _dimensions, None),
        fields.values("truncate", boolean, None),
        fields.values("return_num_input_tokens", boolean, False),
        strict=True,
    )
    options = list(columns)
    if is_list:
        texts = _listed_texts(fields)
        rows = [EmbeddingRow("input_text", one, *options[0][:3]) for one in texts]
    else:
        texts = required_texts(fields, "text_input")
        rows = [
            EmbeddingRow("text_input", one, *row[:3])
            for one, row in zip(texts, options, strict=True)
        ]
    return EmbeddingRequest(tuple(rows), batched or is_list, any(row[3] for row in options))


def _listed_texts(fields: RequestFields) -> list[str]:
    if fields.has_tensor("text_input"):
        raise RequestError("text_input and input_text: got both, send one of them")
    (texts,) = fields.lists("input_text", text)
    if not texts:
        raise RequestError("input_text: got an empty list, allowed: at least one text")
    return each_row(partial(filled, "input_text"), texts)


def _dimensions(name: str, value: Any) -> int:
    dimensions = integer(name, value)
    if dimensions < 1:
        raise RequestError(f"{name}: got {dimensions}, allowed: at least 1")
    return dimensions
