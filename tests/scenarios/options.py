"""Scenarios: each way in which the options of the contract travel. What each does to the tokens is
held by tests/model/engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from wire import Reply

from tests.scenarios.endpoint import FLAGS, Model
from tests.scenarios.reference import Reference

PROMPT = "I am going"
TOLERANCE = 1e-4


def sampled(reply: Reply) -> list[dict[int, dict[str, Any]]]:
    """``logprobs``: for each token what is told of it and of its alternatives, by token id, its own
    first.
    """
    assert reply.ok, reply.error
    listed = json.loads(reply.texts("logprobs")[0])
    return [{int(token_id): told for token_id, told in entry.items()} for entry in listed]


class SamplingParameters:
    """The JSON text that clients of the vLLM backend send."""

    def test_it_means_what_the_tensors_mean_and_wins_over_them(self, model: Model) -> None:
        options = {"max_tokens": 12, "temperature": 1.3, "top_k": 40, "top_p": 0.9, "seed": 5}
        text = model.ask("tensors", PROMPT, **options).text()

        assert model.sample(PROMPT, **options).text() == text
        for how in ("tensors", "parameters"):
            sampling = json.dumps(options)
            reply = model.ask(how, PROMPT, max_tokens=9, seed=1, sampling_parameters=sampling)
            assert reply.text() == text

    def test_what_it_can_not_mean_is_a_400_that_names_it(self, model: Model) -> None:
        reply = model.sample(PROMPT, max_tokns=3)

        assert reply.status == 400, reply
        assert "max_tokns" in reply.error


class MoreOptions:
    """Options that are tensors."""

    def test_choices_differ_and_a_seed_repeats_them(self, model: Model) -> None:
        options = {"max_tokens": 10, "temperature": 1.5, "seed": 3, **FLAGS}
        first, again = (model.ask("tensors", PROMPT, n=3, **options) for _ in range(2))

        assert len(set(first.texts())) > 1
        assert first.texts() == again.texts()
        assert first.texts()[0] == model.ask("tensors", PROMPT, **options).text()
        shape = (1, 3) if model.batched else (3,)
        for name in ("text_output", "finish_reason", "num_output_tokens"):
            assert first.outputs[name].shape == shape
        assert first.outputs["num_input_tokens"].shape == ((1, 1) if model.batched else (1,))

    def test_log_probabilities_are_those_of_the_raw_logits(
        self, model: Model, reference: Reference
    ) -> None:
        options = {"temperature": 1.7, "seed": 9, "top_k": 30}
        entries = sampled(model.sample(PROMPT, max_tokens=10, logprobs=3, **options))
        token_ids = [next(iter(entry)) for entry in entries]
        table = reference.log_probabilities(PROMPT, token_ids)

        for row, (token_id, entry) in enumerate(zip(token_ids, entries, strict=True)):
            for listed, told in entry.items():
                value = float(table[row, listed])
                assert told["logprob"] == pytest.approx(value, abs=TOLERANCE)
                assert told["decoded_token"] == reference.decoded(listed)
            likelier = int((table[row] > table[row, token_id]).sum())
            assert entry[token_id]["rank"] == likelier + 1
