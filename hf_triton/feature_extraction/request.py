"""A request for embeddings, read from its tensors; knows no model."""

from __future__ import annotations

from dataclasses import dataclass

from hf_triton.encoder.sentence_transformers.prompts import USES
from hf_triton.encoder.texts.row_values import LIST, count_rows, given_texts, integer_in, one_of
from hf_triton.runtime.request.tensors import RequestFields, boolean, text

INPUTS = (
    *("text_input", LIST, "prompt_name", "dimensions"),
    *("return_num_input_tokens", "truncate"),
    "input_type",  # a parameter alone
)


@dataclass(frozen=True)
class EmbeddingRow:
    """One text, perhaps an empty one. ``field`` is the tensor that it came in; ``input_type`` its
    use, one of USES.
    """

    field: str
    text: str
    prompt_name: str | None
    input_type: str | None
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
        RequestError: no text, one that is no UTF-8, or an option of a wrong kind.
    """
    fields.check_parameters(INPUTS)
    name = count_rows(fields, INPUTS)
    texts = given_texts(fields, name)
    columns = zip(
        texts,
        fields.values("prompt_name", text, None),
        fields.values("input_type", one_of(*USES), None),
        fields.values("dimensions", integer_in(1), None),
        fields.values("truncate", boolean, None),
        fields.values("return_num_input_tokens", boolean, False),
        strict=True,
    )
    read = [(EmbeddingRow(name, *row), wants_number) for *row, wants_number in columns]
    rows = tuple(row for row, _ in read)
    return EmbeddingRequest(rows, batched or name == LIST, any(wants for _, wants in read))
