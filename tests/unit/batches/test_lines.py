"""What is wrong with a line of a batch's input, and where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_triton.batches.lines import count_lines

EMBED = "/v1/embeddings"
GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": EMBED, "body": {"model": "m"}}


def written(**fields: Any) -> bytes:
    return json.dumps({name: v for name, v in {**GOOD, **fields}.items() if v is not None}).encode()


@pytest.mark.parametrize(
    "line, code, param, said",
    [
        (b'{"custom_id": ', "invalid_json_line", None, "not valid JSON"),
        (b"[]", "invalid_json_line", None, "got a list, allowed: a JSON object"),
        (written(custom_id=None), "invalid_custom_id", "custom_id", "got none"),
        (written(custom_id=3), "invalid_custom_id", "custom_id", "got 3, allowed: a text"),
        (written(), "duplicate_custom_id", "custom_id", "got that of line 1 again"),
        (written(custom_id="b", method="GET"), "invalid_method", "method", "allowed: POST"),
        (written(custom_id="b", url="/v1/nothing"), "invalid_url", "url", EMBED),
        (written(custom_id="b", url="/v1/responses"), "invalid_url", "url", EMBED),
        (written(custom_id="b", body=None), "invalid_body", "body", "got none"),
        (
            written(custom_id="b", body={"stream": True}),
            *("invalid_body_stream", "body.stream", "whole answers"),
        ),
    ],
)
def test_a_wrong_line_is_told_with_its_number_and_field(
    line: bytes, code: str, param: str | None, said: str
) -> None:
    total, [mistake] = count_lines([written() + b"\n", b" \n", line], EMBED)
    assert (total, mistake.line, mistake.code, mistake.param) == (2, 3, code, param)
    assert said in mistake.message


def test_a_file_of_blank_lines_is_empty() -> None:
    total, [mistake] = count_lines([b"\n", b"  \n"])
    assert (total, mistake.code, mistake.line) == (0, "empty_file", None)


def test_a_hundred_mistakes_are_told() -> None:
    total, mistakes = count_lines([b"{"] * 1000)
    assert (total, len(mistakes)) == (1000, 100)
