"""Scenarios: requests that run out of time. ``timed`` gives a request 300 ms, and 60 s at most."""

from __future__ import annotations

from typing import Any

import pytest
from wire import Reply

from tests.scenarios.endpoint import FLAGS, Model, joined
from tests.scenarios.reference import Reference

PROMPT = "Once"
LONG = {"max_tokens": 1000, "min_tokens": 1000}  # takes longer than any of the times here
SOON_MS = 100


def _longer(reference: Reference, *chunks: Reply) -> str:
    """The model's own text, of one token more than the chunks have."""
    count = sum(chunk.number("num_output_tokens") for chunk in chunks) + 1
    return reference.answer(PROMPT, count, min_tokens=count).text


class Timeouts:
    """``model`` is ``timed``."""

    @pytest.mark.parametrize("options", [{}, {"timeout_ms": SOON_MS}], ids=["default", "its own"])
    def test_a_request_out_of_time_gets_what_there_is(
        self, model: Model, reference: Reference, options: dict[str, Any]
    ) -> None:
        reply = model.ask("tensors", PROMPT, **LONG, **FLAGS, **options)

        assert reply.ok, reply.error
        assert reply.texts("finish_reason") == ["timeout"]
        assert reply.number("num_output_tokens") < 1000
        assert _longer(reference, reply).startswith(reply.text())

    def test_a_stream_out_of_time_says_so_in_its_last_chunk(
        self, model: Model, reference: Reference
    ) -> None:
        chunks = model.engine.stream(PROMPT, timeout_ms=SOON_MS, **LONG, **FLAGS)

        assert _longer(reference, *chunks).startswith(joined(chunks))
        reasons = [chunk.texts("finish_reason")[0] for chunk in chunks]
        assert reasons == [""] * (len(chunks) - 1) + ["timeout"]

    def test_an_error_is_a_503_where_the_caller_wants_one(self, model: Model) -> None:
        reply = model.ask("tensors", PROMPT, on_timeout="error", timeout_ms=SOON_MS, **LONG)

        assert reply.status == 503, reply
        assert str(SOON_MS) in reply.error or "timeout" in reply.error
