"""Scenarios: several rows in one request, each with its own options (max_batch_size above 0)."""

from __future__ import annotations

from tests.scenarios.endpoint import Model, rows
from tests.scenarios.reference import Reference

PROMPTS = ["Once", "I am going", "What is the capital of Germany?"]


class ClientBatches:
    """``model`` is each of the batched ones."""

    def test_every_row_has_its_own_options(self, model: Model, reference: Reference) -> None:
        word = reference.answer(PROMPTS[2], 16).pieces[3]
        reply = model.infer(
            rows(
                PROMPTS,
                max_tokens=[3, 9, 16],
                exclude_input_in_output=[True, False, True],
                repetition_penalty=[1.0, 1.5, 1.0],
                stop_words=[["", ""], ["never said", ""], [word, ""]],
                temperature=[0.0, 0.0, 0.0],
                return_finish_reason=[True, True, True],
                return_num_input_tokens=[True, True, True],
                return_num_output_tokens=[True, True, True],
            )
        )

        assert reply.ok, reply.error
        penalised = reference.answer(PROMPTS[1], 9, repetition_penalty=1.5).text
        stopped = reference.text(PROMPTS[2], 16)
        assert reply.texts() == [
            reference.text(PROMPTS[0], 3),
            PROMPTS[1] + penalised,
            stopped[: stopped.index(word)],
        ]
        assert reply.texts("finish_reason") == ["length", "length", "stop"]
        counts = [reference.num_tokens(prompt) for prompt in PROMPTS]
        assert reply.outputs["num_input_tokens"].tolist() == [[count] for count in counts]
        assert reply.outputs["num_output_tokens"].tolist()[:2] == [[3], [9]]

    def test_rows_of_a_batch_stream_side_by_side(self, model: Model, reference: Reference) -> None:
        lengths = [3, 14, 9]
        request = rows(
            PROMPTS,
            max_tokens=lengths,
            stream=[True] * 3,
            return_finish_reason=[True] * 3,
            return_num_output_tokens=[True] * 3,
        )

        chunks = model.endpoint.stream(model.engine.name, request)

        texts = ["".join(parts) for parts in zip(*(c.texts() for c in chunks), strict=True)]
        assert texts == [
            reference.text(prompt, length) for prompt, length in zip(PROMPTS, lengths, strict=True)
        ]
        counts = zip(*(chunk.numbers("num_output_tokens") for chunk in chunks), strict=True)
        assert [sum(told) for told in counts] == lengths

    def test_a_bad_row_is_named_and_fails_its_request_alone(
        self, model: Model, reference: Reference
    ) -> None:
        bad = rows(["Once", ""], max_tokens=[4, 4])
        good = rows(PROMPTS, max_tokens=[4, 4, 4])

        replies = model.infer_together([good, bad, good])

        assert replies[1].status == 400
        assert "text_input" in replies[1].error
        assert "row 1" in replies[1].error
        for reply in (replies[0], replies[2]):
            assert reply.texts() == [reference.text(prompt, 4) for prompt in PROMPTS]

    def test_more_rows_than_max_batch_size_are_refused(self, model: Model) -> None:
        reply = model.infer(rows(["Once"] * 9))

        assert reply.status == 400
        assert "batch-size must be <= 8" in reply.error
