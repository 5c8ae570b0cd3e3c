"""Prompts beside streams: their chunks take as long as they may, by what steps took."""

from __future__ import annotations

import pytest

from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import Answers, setup
from tests.support.tiny_models import Asked, mixed_load, reference, tiny_model


def seconds(num_decodes: int, num_prompt_tokens: int) -> float:
    """A step's time: 10 ms, 0.2 for each sequence and 0.4 for each token of a prompt."""
    return 0.010 + 0.0002 * num_decodes + 0.0004 * num_prompt_tokens


def after(steps: int, num_decodes: int, num_prompts: int = 1) -> float:
    """The time of a step with prompts after so many steps."""
    times = StepTimes()
    times.note(0, 512, seconds(0, 512))
    times.note(num_decodes, 0, seconds(num_decodes, 0))
    num_tokens: int | None = None
    for _ in range(steps):
        num_tokens = times.most_prompt_tokens(num_decodes, num_prompts)
        assert num_tokens is not None
        times.note(num_decodes, num_tokens, seconds(num_decodes, num_tokens))
    assert num_tokens is not None
    return seconds(num_decodes, num_tokens) / seconds(num_decodes, 0)


@pytest.mark.parametrize("num_decodes", [1, 8, 64])
def test_a_step_with_prompts_takes_at_most_twice_one_without(num_decodes: int) -> None:
    assert 1.5 < after(8, num_decodes) <= 2


def test_several_prompts_get_more() -> None:
    assert 3.5 < after(8, 8, num_prompts=2) <= 4.3


def test_a_step_that_another_process_held_up_is_soon_forgotten() -> None:
    times = StepTimes()
    times.note(0, 512, seconds(0, 512))
    for _ in range(20):
        times.note(4, 0, seconds(4, 0))
    before = times.most_prompt_tokens(4, 1)
    times.note(4, 0, 5.0)
    times.note(4, 24, 5.0)
    assert before is not None
    after_it = times.most_prompt_tokens(4, 1)
    assert after_it is not None
    assert 0.5 * before < after_it < 1.2 * before


def test_before_any_step_was_measured_nothing_is_bounded() -> None:
    times = StepTimes()
    assert times.most_prompt_tokens(1, 1) is None
    times.note(1, 0, 0.01)
    assert times.most_prompt_tokens(1, 1) is None


@pytest.mark.parametrize("streams", [True, False])
def test_prompts_are_computed_in_small_chunks_beside_streams_alone(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, asked = mixed_load(3)[2], mixed_load(3, seed=4)[2]
    model = tiny_model("llama")
    monkeypatch.setattr(StepTimes, "most_prompt_tokens", lambda *_: 16)
    engine = InFlightEngine(setup(model))
    engine.prepare()
    schedule, sizes = Scheduler.schedule, []

    def scheduled(scheduler: Scheduler) -> Step:
        step = schedule(scheduler)
        sizes.append([chunk.end - chunk.start for chunk in step.prefills])
        return step

    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    answers = Answers()
    first = answers.sequence(0, running.prompt, max_tokens=9, streams=streams)
    second = answers.sequence(1, asked.prompt, max_tokens=5)
    engine.add([first])
    for _ in range(3):
        engine.step()
    engine.add([second])
    while engine.has_work():
        engine.step()
    num_tokens = len(asked.prompt)
    assert [size for step in sizes[3:] for size in step] == (
        [16, 16, num_tokens - 32] if streams else [num_tokens]
    )
    assert [tuple(second.token_ids)] == reference(model, [Asked(asked.prompt, 5)])
