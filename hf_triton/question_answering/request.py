"""Reads a request's questions row by row, with the options of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_triton.encoder.texts.row_values import integer_in, required_texts
from hf_triton.encoder.texts.tokenization import Tokenization
from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.request.tensors import RequestFields, boolean

from .options import Options

_DEFAULT_WINDOW = 384
_DEFAULT_STRIDE = 128


@dataclass(frozen=True)
class Question:
    """One row of a request. Lengths and the stride are in tokens; ``truncate`` is decided."""

    question: str
    context: str
    top_k: int
    max_answer_len: int
    max_question_len: int | None
    max_seq_len: int
    doc_stride: int
    handle_impossible_answer: bool
    align_to_words: bool
    truncate: bool


class QuestionReader:
    """Reads requests of one model."""

    def __init__(self, options: Options, tokenization: Tokenization) -> None:
        longest = tokenization.max_length
        if (options.max_seq_len or 0) > longest:
            raise LoadError(
                f"max_seq_len: got {options.max_seq_len}, this model takes at most {longest} tokens"
            )
        shortest = int(tokenization.tokenizer.num_special_tokens_to_add(True)) + 2
        window = options.max_seq_len or min(_DEFAULT_WINDOW, longest)
        self._doc_stride = options.doc_stride
        self._columns: Mapping[str, tuple[Any, Any]] = {
            "top_k": (integer_in(1, options.max_top_k), options.top_k),
            "max_answer_len": (integer_in(1), options.max_answer_len),
            "max_question_len": (integer_in(1), options.max_question_len),
            "max_seq_len": (integer_in(shortest, longest), window),
            "doc_stride": (integer_in(0), None),
            "handle_impossible_answer": (boolean, options.handle_impossible_answer),
            "align_to_words": (boolean, options.align_to_words),
            "truncate": (boolean, tokenization.truncation),
        }

    def read(self, fields: RequestFields) -> list[Question]:
        """The rows of a request.

        Raises:
            RequestError: names the field, what was got and what is allowed.
        """
        names = ("question", "context", *self._columns)
        fields.check_parameters(names)
        fields.count_rows(*names)
        columns = {
            "question": required_texts(fields, "question", "context"),
            "context": required_texts(fields, "context", "question"),
            **{name: fields.values(name, *how) for name, how in self._columns.items()},
        }
        rows = zip(*columns.values(), strict=True)
        return [self._question(dict(zip(columns, row, strict=True))) for row in rows]

    def _question(self, values: dict[str, Any]) -> Question:
        if values["doc_stride"] is None:
            half = values["max_seq_len"] // 2
            default = min(_DEFAULT_STRIDE, half)
            values["doc_stride"] = default if self._doc_stride is None else self._doc_stride
        return Question(**values)
