"""Answers that are one JSON text for each row of a request: the output ``output``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from hf_runtime.errors import EngineError

from .encoding import Encoding
from .rows import text_rows
from .task import Array, Prepared


@dataclass(frozen=True)
class JsonRow:
    """One row of a request: what is computed for it, and how its answer is made of the results,
    which come in the order of ``encodings``.
    """

    encodings: Sequence[Encoding]
    answer: Callable[[list[Array]], object]


def json_request(rows: Sequence[JsonRow], *, batched: bool) -> Prepared:
    """A request of these rows; its answer is (rows, 1) texts where ``batched``, else (1,)."""

    def answer(results: list[Array]) -> Mapping[str, Array]:
        left = iter(results)
        texts = [[json_text(row.answer([*islice(left, len(row.encodings))]))] for row in rows]
        return {"output": text_rows(texts, batched=batched)}

    return Prepared([encoding for row in rows for encoding in row.encodings], answer)


def json_text(value: object) -> str:
    """A value as JSON, characters as they are.

    Raises:
        EngineError: a number in it is none, which is the model's fault.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise EngineError("the model computed a score that is no number") from None
