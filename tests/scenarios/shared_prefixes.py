"""Scenarios: prompts that begin alike, as the turns of a chat do, answer as they would alone."""

from __future__ import annotations

from tests.scenarios.endpoint import Model
from tests.scenarios.metrics import ReadMetric, wait_for
from tests.scenarios.reference import Reference

SYSTEM = "You answer questions about towns in one short sentence, and say so when you don't know. "
QUESTIONS = ("What is the capital of Germany?", "Where is Rome?", "Where is Rome?")


class SharedPrefixes:
    """``read_metric`` gives one number of ``model`` by its name."""

    def test_a_shared_beginning_is_computed_once_and_changes_no_answer(
        self, model: Model, reference: Reference, read_metric: ReadMetric
    ) -> None:
        before = read_metric("hf_triton_reused_prompt_tokens_total")
        prompts = [SYSTEM * 3 + question for question in QUESTIONS]
        for prompt in prompts:
            reply = model.ask("tensors", prompt, max_tokens=12)
            assert reply.ok, reply.error
            assert reply.text() == reference.text(prompt, 12)

        least = reference.num_tokens(SYSTEM * 3) - 2 + reference.num_tokens(prompts[2]) - 1
        wait_for(
            lambda: [read_metric("hf_triton_reused_prompt_tokens_total") - before >= least], [True]
        )
        wait_for(lambda: [read_metric("hf_triton_kv_slots_kept") > 0], [True])
