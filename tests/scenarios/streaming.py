"""Scenarios: answers that come chunk by chunk, from the engine's own folder."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from wire import Reply

from tests.scenarios.endpoint import FLAGS, Model, joined
from tests.scenarios.reference import Reference

PROMPT = "I am going"
PROMPTS = (
    PROMPT,
    "Zoë said: 日本 🙂",
)
ENDS = (1, 7, 40)
LONG = 100  # tokens: late ones come together, but not nearly so many


def reasons(chunks: Sequence[Reply]) -> list[str]:
    return [reason for chunk in chunks for reason in chunk.texts("finish_reason")]


def error_of(chunks: Sequence[Reply]) -> str:
    """The error of a stream that has nothing else."""
    (reply,) = chunks
    assert not reply.ok
    return reply.error


class Streams:
    """``model`` is each streaming model's public name; its engine is what streams."""

    KIND = ""

    @pytest.mark.parametrize("prompt", PROMPTS)
    def test_the_chunks_are_the_text_of_the_whole_answer(
        self, model: Model, reference: Reference, prompt: str
    ) -> None:
        for max_tokens in ENDS:
            expected = reference.answer(prompt, max_tokens)

            chunks = model.engine.stream(prompt, max_tokens=max_tokens, **FLAGS)

            assert joined(chunks) == expected.text
            assert len(chunks) > 1 or expected.num_output_tokens < ENDS[-1]
            assert reasons(chunks) == [""] * (len(chunks) - 1) + [expected.finish_reason]
            told = [chunk.number("num_output_tokens") for chunk in chunks]
            assert sum(told) == expected.num_output_tokens
            assert {chunk.number("num_input_tokens") for chunk in chunks} == {
                expected.num_input_tokens
            }

    def test_random_texts_join_to_what_they_are_without_a_stream(self, model: Model) -> None:
        """Hot enough for tokens that are parts of characters; vLLM takes no more than 2."""
        hottest = 2.0 if self.KIND == "vllm" else 3.0
        for seed in range(3):
            options = {"max_tokens": 32, "temperature": hottest, "seed": seed}
            whole = model.ask("tensors", PROMPT, **options)

            assert joined(model.engine.stream(PROMPT, **options)) == whole.text()

    def test_every_chunk_has_all_choices(self, model: Model) -> None:
        options = {"max_tokens": 10, "n": 3, "seed": 7, "temperature": 1.5, **FLAGS}
        whole = model.ask("tensors", PROMPT, **options)

        chunks = model.engine.stream(PROMPT, **options)

        assert all(len(chunk.texts()) == 3 for chunk in chunks), chunks
        texts = ["".join(parts) for parts in zip(*(c.texts() for c in chunks), strict=True)]
        assert texts == whole.texts()
        counts = zip(*(chunk.numbers("num_output_tokens") for chunk in chunks), strict=True)
        assert [sum(told) for told in counts] == whole.numbers("num_output_tokens")
        for told in zip(*(chunk.texts("finish_reason") for chunk in chunks), strict=True):
            assert [reason for reason in told if reason], "every choice says why it ended"

    @pytest.mark.parametrize("text, named", [("", "text_input"), (PROMPT, "max_tokens")])
    def test_a_bad_request_is_one_error_that_names_its_field(
        self, model: Model, text: str, named: str
    ) -> None:
        assert named in error_of(model.engine.stream(text, max_tokens=100_000))
        assert joined(model.engine.stream(PROMPT, max_tokens=2)), "the next one is served"


class StreamEndpoints:
    """Asks each of Triton's endpoints for the two folders of a streaming model."""

    def test_events_are_the_chunks(self, model: Model, reference: Reference) -> None:
        body = {"text_input": PROMPT, "parameters": {"max_tokens": LONG}, "stream": True, "id": "7"}

        status, events = model.engine.generate_stream({**body, "return_finish_reason": True})

        assert status == 200
        assert "".join(event["text_output"] for event in events) == reference.text(PROMPT, LONG)
        assert len(events) > 3
        assert events[-1]["finish_reason"] == "length"
        assert {event["model_name"] for event in events} == {model.engine.name}

    def test_a_bad_request_is_a_400_with_one_event(self, model: Model) -> None:
        body = {"text_input": PROMPT, "max_tokens": 0, "stream": True}

        status, events = model.engine.generate_stream(body)

        assert status == 400
        (event,) = events
        assert event["error"].startswith("max_tokens: ")

    def test_infer_is_not_for_the_engines_folder(self, model: Model) -> None:
        reply = model.engine.ask("tensors", PROMPT, max_tokens=2)

        assert reply.status == 501
        assert "doesn't support models with decoupled transaction policy" in reply.error

    def test_generate_takes_the_engines_folder_where_it_answers_once(
        self, model: Model, reference: Reference
    ) -> None:
        body = {"text_input": PROMPT, "max_tokens": 12}

        status, answer = model.engine.generate(body)
        assert status == 200
        assert answer["text_output"] == reference.text(PROMPT, 12)

        _, answer = model.engine.generate({**body, "max_tokens": LONG, "stream": True})
        assert "exactly 1 response" in answer["error"]
        assert model.engine.generate(body)[0] == 200
