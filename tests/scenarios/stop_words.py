"""Scenarios: where stop words end a text. They are taken from what the model really says."""

from __future__ import annotations

import json

import pytest

from tests.scenarios.endpoint import Model
from tests.scenarios.reference import Expected, Reference

PROMPT = "Once"
LENGTH = 24


def ask(model: Model, *stop_words: str, **options: int) -> tuple[str, str]:
    """The text and the finish reason."""
    reply = model.ask(
        "tensors",
        PROMPT,
        max_tokens=LENGTH,
        stop_words=stop_words,
        return_finish_reason=True,
        **options,
    )
    assert reply.ok, reply.error
    return reply.text(), reply.texts("finish_reason")[0]


class StopWords:
    """The text ends before the first stop word, whatever tokens it is made of."""

    @pytest.fixture
    def said(self, reference: Reference) -> Expected:
        """What the model says without stop words."""
        return reference.answer(PROMPT, LENGTH)

    def test_a_stop_word_may_span_tokens(self, model: Model, said: Expected) -> None:
        word = said.pieces[6][-1] + said.pieces[7] + said.pieces[8][:1]
        assert not any(word in piece for piece in said.pieces)

        assert ask(model, word) == (said.text[: said.text.index(word)], "stop")

    def test_a_stop_word_may_be_a_special_token_which_no_text_shows(self, model: Model) -> None:
        wanted = {"stop": ["<|pad|>"], "logit_bias": {"1": 100}, "max_tokens": 4}
        reply = model.ask(
            "tensors", PROMPT, sampling_parameters=json.dumps(wanted), return_finish_reason=True
        )

        assert (reply.text(), reply.texts("finish_reason")) == ("", ["stop"])

    def test_each_request_has_its_own_stop_words(self, model: Model, said: Expected) -> None:
        words = [said.pieces[n] for n in (3, 5, 7)] + ["never said"]

        replies = model.infer_together(
            [model.by_tensors(PROMPT, max_tokens=LENGTH, stop_words=[word]) for word in words]
        )

        ends = [said.text.find(word) for word in words[:3]] + [None]
        assert [reply.text() for reply in replies] == [said.text[:end] for end in ends]
