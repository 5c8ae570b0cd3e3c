"""Nobody finds out by the metrics what another one's prompt began with."""

from __future__ import annotations

import pytest

from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engine.metrics import REUSED_STEP, rounded
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import Answers, running, setup
from tests.support.tiny_models import VOCAB_SIZE, tiny_model

HEAD = [20 + number for number in range(40)]  # what a prompt is known to begin with
TOLD = "hf_triton_reused_prompt_tokens_total []"
CHUNK = 8  # tokens of a step


def new_engine() -> InFlightEngine:
    model = tiny_model("llama")
    return InFlightEngine(setup(model, max_num_seqs=4, max_num_batched_tokens=CHUNK))


def ask(engine: Engine, prompt: list[int]) -> None:
    """Returns when it is answered."""
    answers = Answers()
    engine.submit([answers.sequence(0, prompt, max_tokens=1)])
    answers.completion(0)
    while engine.has_work() or engine.thread.num_unfinished:
        pass  # its slot is given back between two steps


def published(engine: Engine) -> dict[str, float]:
    """All numbers but times, which differ by themselves."""
    return {
        f"{family.name} {sorted(sample.labels.items())}": sample.value
        for family in engine.families()
        if "seconds" not in family.name
        for sample in family.samples
    }


@pytest.mark.threat("guesses-in-metrics")
@pytest.mark.usefixtures("storage_kind")
@pytest.mark.parametrize("storage_kind", ["few pages"], indirect=True)
@pytest.mark.parametrize("num_more", range(CHUNK + 1))
def test_no_number_but_a_rounded_one_depends_on_what_was_reused(num_more: int) -> None:
    """Neither the number of steps that a prompt takes, nor how many prefixes are kept: the last
    token of 35 is right or wrong, and ``num_more`` that nobody sent before come after it.
    """
    told = []
    for last in (HEAD[34], VOCAB_SIZE - 1):
        with running(new_engine()) as engine:
            ask(engine, [*HEAD, 1, 2, 3])
            ask(engine, [*HEAD[:34], last, *[95] * num_more])
            told.append(published(engine))
        assert engine.metrics.num_reused_prompt_tokens % REUSED_STEP
        assert told[-1].pop(TOLD) % REUSED_STEP == 0
    assert told[0] == told[1]


def test_a_rounded_total_is_right_on_average() -> None:
    total = sum(rounded(300) for _ in range(20_000))
    assert total % REUSED_STEP == 0
    # One standard deviation is 466 * sqrt(20,000), 1.1 % of the true value.
    assert 0.92 < total / (20_000 * 300) < 1.08
    assert rounded(0) == 0
    assert rounded(4 * REUSED_STEP) == 4 * REUSED_STEP
