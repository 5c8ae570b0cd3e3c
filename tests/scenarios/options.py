"""Scenarios: the options of the whole contract beside those in answers.py."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from wire import Reply

from tests.scenarios.endpoint import FLAGS, Model
from tests.scenarios.reference import Reference

PROMPT = "I am going"
TOLERANCE = 1e-4


def sampled(reply: Reply, choice: int = 0) -> list[dict[int, dict[str, Any]]]:
    """The ``logprobs`` of a choice: for each token what is told of it and of its alternatives, by
    token id, its own first.
    """
    assert reply.ok, reply.error
    listed = json.loads(reply.texts("logprobs")[choice])
    return [{int(token_id): told for token_id, told in entry.items()} for entry in listed]


class SamplingParameters:
    """The JSON text that clients of the vLLM backend send."""

    def test_it_means_what_the_tensors_mean(self, model: Model) -> None:
        options = {"max_tokens": 12, "temperature": 1.3, "top_k": 40, "top_p": 0.9, "seed": 5}

        assert (
            model.sample(PROMPT, **options).text() == model.ask("tensors", PROMPT, **options).text()
        )

    def test_it_wins_over_tensors_and_parameters(self, model: Model, reference: Reference) -> None:
        sampling = json.dumps({"max_tokens": 4})
        for how in ("tensors", "parameters"):
            reply = model.ask(how, PROMPT, max_tokens=9, sampling_parameters=sampling)

            assert reply.text() == reference.text(PROMPT, 4)

    def test_what_it_can_not_mean_is_a_400_that_names_it(self, model: Model) -> None:
        reply = model.sample(PROMPT, max_tokns=3)

        assert reply.status == 400, reply
        assert "max_tokns" in reply.error


class MoreOptions:
    """Options that are tensors."""

    @pytest.mark.parametrize("how", ["tensors", "parameters"])
    @pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
    def test_penalties_are_over_the_output(
        self, model: Model, reference: Reference, how: str, name: str
    ) -> None:
        options: dict[str, Any] = {name: 1.5}
        expected = reference.answer("Once", 24, **options)
        assert expected.text != reference.text("Once", 24)

        assert model.ask(how, "Once", max_tokens=24, **options).text() == expected.text

    def test_choices_differ_and_a_seed_repeats_them(self, model: Model) -> None:
        options = {"max_tokens": 10, "temperature": 1.5, "seed": 3, **FLAGS}
        first, again = (model.ask("tensors", PROMPT, n=3, **options) for _ in range(2))

        assert len(set(first.texts())) > 1
        assert first.texts() == again.texts()
        assert first.texts()[0] == model.ask("tensors", PROMPT, **options).text()
        shape = (1, 3) if model.batched else (3,)
        assert first.outputs["text_output"].shape == shape
        assert first.outputs["finish_reason"].shape == shape
        assert first.outputs["num_output_tokens"].shape == shape
        assert first.outputs["num_input_tokens"].shape == ((1, 1) if model.batched else (1,))

    def test_log_probabilities_are_those_of_the_raw_logits(
        self, model: Model, reference: Reference
    ) -> None:
        for options in (
            {},
            {"temperature": 1.7, "seed": 9, "top_k": 30},
            {"repetition_penalty": 1.5},
        ):
            reply = model.sample(PROMPT, max_tokens=10, logprobs=3, **options)
            entries = sampled(reply)
            token_ids = [next(iter(entry)) for entry in entries]
            table = reference.log_probabilities(PROMPT, token_ids)

            for row, (token_id, entry) in enumerate(zip(token_ids, entries, strict=True)):
                for listed, told in entry.items():
                    value = float(table[row, listed])
                    assert told["logprob"] == pytest.approx(value, abs=TOLERANCE)
                    assert told["decoded_token"] == reference.decoded(listed)
                ranks = sorted(told["rank"] for told in entry.values())
                assert ranks[:3] == [1, 2, 3]
                likelier = int((table[row] > table[row, token_id]).sum())
                assert entry[token_id]["rank"] == likelier + 1
            total = math.fsum(float(table[row, i]) for row, i in enumerate(token_ids))
            cumulative = reply.numbers("cumulative_logprob")[0]
            assert cumulative == pytest.approx(total, abs=TOLERANCE * len(token_ids))
