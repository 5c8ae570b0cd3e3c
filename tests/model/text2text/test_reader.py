"""The options of a request's rows, for a model that answers by a search with beams."""

from __future__ import annotations

from typing import Any

import pytest

from hf_triton.runtime.errors import RequestError
from hf_triton.text2text_generation.source import SourceReader
from hf_triton.text_generation.request.row_options import read_rows
from tests.support.request_fields import fields

NOBODY: Any = None
READER = SourceReader(
    *(NOBODY,) * 4, encode=NOBODY, languages=NOBODY, prefix="", truncation=False, beams=4
)


def rows(**constraints: list[Any]) -> list[dict[str, Any]]:
    """The rows of a client's batch of two."""
    given = {"text_input": [[b"a"], [b"b"]], **constraints}
    return read_rows(fields(given, {}, batched=True), SourceReader.fields)


@pytest.mark.parametrize("empty", [{"choice": [["", ""]] * 2}, {"regex": [[""]] * 2}])
def test_empty_texts_of_a_batch_hold_no_beam_to_anything(empty: dict[str, list[Any]]) -> None:
    assert [READER.num_beams(row) for row in rows(**empty)] == [4, 4]


def test_a_row_of_a_batch_that_is_held_to_something_is_refused_by_its_name() -> None:
    free, held = rows(choice=[["", ""], ["yes", "no"]])
    assert READER.num_beams(free) == 4
    with pytest.raises(RequestError, match=r"^choice: this model answers by a search with 4 beams"):
        READER.num_beams(held)
