"""Every line that a model's process logs names the model."""

from __future__ import annotations

import pytest

from hf_triton.runtime import log


@pytest.mark.parametrize(
    "message,expected",
    [
        ("a request failed: KeyError", "demo_stream: a request failed: KeyError"),
        ("demo_stream: loaded in 1.0 s", "demo_stream: loaded in 1.0 s"),
        ("demo: quantising to int8, once", "demo: quantising to int8, once"),
        ("[request id: 7] failed", "demo_stream: [request id: 7] failed"),
        ("d: no name of it", "demo_stream: d: no name of it"),
    ],
)
def test_a_line_begins_with_the_models_name(
    message: str, expected: str, log_lines: list[str]
) -> None:
    log.begin("demo_stream")
    for write in (log.info, log.warn, log.error):
        write(message)
    assert log_lines == [f"{letter} {expected}" for letter in "IWE"]


def test_before_the_name_is_known_lines_are_as_they_are(log_lines: list[str]) -> None:
    log.info("torch is imported")
    assert log_lines == ["I torch is imported"]
