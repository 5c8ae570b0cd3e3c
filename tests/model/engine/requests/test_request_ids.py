"""Errors and log lines name their request, whatever its client calls it."""

from __future__ import annotations

from typing import Any

import pytest
import triton_python_backend_utils as pb_utils

from hf_triton.runtime.errors import EngineError, RequestError
from hf_triton.runtime.log import MAX_SHOWN, labelled
from hf_triton.runtime.request.responder import TritonResponder, attempt
from tests.support.intake_driver import Caller


def test_a_text_is_labelled_once_and_only_where_there_is_an_id() -> None:
    assert labelled("7", "top_p: got 2") == "[request id: 7] top_p: got 2"
    assert labelled("7", labelled("7", "top_p: got 2")) == "[request id: 7] top_p: got 2"
    assert labelled("", "top_p: got 2") == "top_p: got 2"


@pytest.mark.threat("forged-log-lines")
@pytest.mark.parametrize(
    "request_id,expected",
    [
        ("plain-Id_7", "plain-Id_7"),
        ("naïve 猫", "naïve 猫"),
        ("a\nE1121 00:00:00 1 x.py:1] forged", "a\\nE1121 00:00:00 1 x.py:1? forged"),
        ("\x1b[31mred\r\0", "\\x1b[31mred\\r\\x00"),
        ("\u202eright to left", "\\u202eright to left"),
        ('"] quoted\\', "?? quoted?"),
        ("x" * 999, "x" * (MAX_SHOWN - 1) + "…"),
    ],
)
def test_an_id_is_shown_on_one_line_and_not_in_whole(request_id: str, expected: str) -> None:
    assert labelled(request_id, "refused") == f"[request id: {expected}] refused"


def told(error: Exception) -> str:
    """The text that a caller is sent who has gone."""
    sent: list[Any] = []

    def deliver(response: Any, flags: int) -> None:
        sent.append(response)
        raise OSError("the caller has gone")

    request = pb_utils.InferenceRequest((), {}, (), pb_utils.ResponseSender(deliver), "r\n7")
    TritonResponder(request, pb_utils).fail(error)
    (response,) = sent
    text: str = response.error().message()
    return text


def test_triton_is_answered_with_errors_that_name_the_request(log_lines: list[str]) -> None:
    assert told(RequestError("top_p: got 2")) == "[request id: r\\n7] top_p: got 2"
    (line,) = log_lines
    assert (
        line == "W [request id: r\\n7] a response could not be sent: OSError: the caller has gone"
    )
    # Half of a pair of surrogates is no text of Triton's.
    assert told(RequestError("got \ud800")) == "[request id: r\\n7] got ?"


def test_an_open_request_that_fails_is_logged_with_its_id(log_lines: list[str]) -> None:
    caller = Caller("r-7")

    def fail() -> None:
        raise ZeroDivisionError("a prompt")

    attempt(caller, fail)
    assert isinstance(caller.error, EngineError)
    assert log_lines[0].startswith("E [request id: r-7] a request failed: ZeroDivisionError at ")
