"""The vllm engine on a fake vLLM: what it answers, what it tells vLLM, and how it ends.

Against a real one the same scenarios run as for the other engines: ``pytest -m vllm``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_triton.runtime.errors import (
    CancelledError,
    EngineError,
    LoadError,
    OverloadedError,
    RequestError,
)
from hf_triton.runtime.weights.served_model import ServedAdapter
from hf_triton.text_generation.engine.engine import Engine
from hf_triton.text_generation.engines.vllm.arguments import AdapterFile
from hf_triton.text_generation.engines.vllm.vllm_engine import VllmEngine
from hf_triton.text_generation.sequence.sequence import Sequence, TokenLogprobs
from hf_triton.text_generation.structured.constraint import Constraint
from tests.model.engine.fake_vllm import CONTEXT, INTERVAL, FakeVllm
from tests.support.driving import (
    LONG,
    Answers,
    Caller,
    Completion,
    running,
    setup,
    submit,
)
from tests.support.triton import eventually


@pytest.fixture
def vllm() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
def ended() -> threading.Event:
    """An event: the engine has ended the model's process."""
    return threading.Event()


@pytest.fixture
def engine(vllm: FakeVllm, ended: threading.Event) -> Iterator[VllmEngine]:
    engine = VllmEngine(setup(None, eos=[90], max_queue_size=3), vllm.start, ended.set)
    with running(engine):
        yield engine


def test_requests_share_the_engine_and_each_gets_its_own_tokens(engine: Engine) -> None:
    answers = Answers()
    lengths = [7, 1, 12, 30]
    engine.submit([answers.sequence(n, [5, 10 * n], max_tokens=lengths[n]) for n in range(4)])
    answers.wait(4)
    for number, length in enumerate(lengths):
        first = 10 * number + 1
        completion = answers.completion(number)
        assert completion.token_ids == tuple(range(first, first + length))
        assert completion.finish_reason == "length"
    assert engine.max_model_len == CONTEXT
    assert engine.metrics.queue_time_s.sum == 4 * 0.5
    assert "vLLM 0" in engine.description


def test_only_who_watches_is_told_of_each_token(engine: Engine, vllm: FakeVllm) -> None:
    answers = Answers()
    submit(engine, answers, 0, max_tokens=10)
    answers.wait(1)
    assert vllm.told == [1, INTERVAL, INTERVAL, 1]
    ways: list[dict[str, Any]] = [
        {"streams": True},
        {"deadline_s": time.monotonic() + 60},
        {"stop_words": ("never said",)},
    ]
    for number, way in enumerate(ways, 1):
        vllm.told.clear()
        submit(engine, answers, number, max_tokens=3, **way)
        assert answers.completion(number).text == " 7 8 9"
        assert vllm.told == [1, 1, 1], way


def test_an_end_token_ends_unless_it_is_to_be_ignored(engine: Engine) -> None:
    answers = Answers()
    ways: list[dict[str, Any]] = [{}, {"ignore_eos": True}, {"stop_token_ids": (80,)}]
    for number, more in enumerate(ways):
        engine.submit([answers.sequence(number, [75], max_tokens=20, **more)])
    assert answers.completion(0).finish_reason == "stop"
    assert answers.completion(0).token_ids[-1] == 90
    assert answers.completion(1).token_ids == tuple(range(76, 96))
    assert answers.completion(2).token_ids == tuple(range(76, 81))


def test_a_stop_word_ends_the_request_in_vllm_too(engine: Engine, vllm: FakeVllm) -> None:
    answers = Answers()
    sequence = submit(engine, answers, 0, stop_words=(" 11 12",))
    assert answers.completion(0).text == " 7 8 9 10"
    assert answers.completion(0).finish_reason == "stop"
    assert eventually(lambda: vllm.closed == [sequence])


def test_who_leaves_ends_its_request_in_vllm_too(engine: Engine, vllm: FakeVllm) -> None:
    vllm.held_after, answers = 0, Answers()
    leaving = submit(engine, answers, 0)
    assert vllm.entered.wait(60)
    engine.cancel([leaving])
    assert eventually(lambda: vllm.closed == [leaving])
    assert isinstance(answers.wait(1)[0], CancelledError)


def test_what_vllm_does_not_take_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"^temperature: got 3, allowed: 0 to 2 "):
        submit(engine, Answers(), 0, temperature=3.0)
    answers = Answers()
    submit(engine, answers, 0, temperature=3.0, top_k=1, max_tokens=2)  # greedy all the same
    answers.completion(0)


def test_log_probabilities_are_those_of_all_engines(engine: Engine) -> None:
    answers = Answers()
    sequence = submit(engine, answers, 0, max_tokens=1, num_logprobs=3)
    answers.completion(0)
    assert isinstance(sequence.recipient, Caller)
    [logprobs] = sequence.recipient.updates[0].logprobs
    assert logprobs == TokenLogprobs(-1.0, 2, ((8, -0.5, 1), (10, -1.5, 3)))


def test_those_of_a_prompt_come_alone_where_no_token_is_asked_for(engine: Engine) -> None:
    for number, most in enumerate((0, 2)):
        answers = Answers()
        sequence = submit(engine, answers, 0, max_tokens=most, num_prompt_logprobs=1)
        completion = answers.completion(0)
        assert sequence.prompt_logprobs == [TokenLogprobs(-1.0, 2, ((7, -0.5, 1),))], number
        assert (len(completion.token_ids), completion.finish_reason) == (most, "length")


def test_a_request_that_vllm_fails_on_is_its_own_error(
    engine: Engine, vllm: FakeVllm, log_lines: list[str]
) -> None:
    vllm.error, answers = ValueError("nothing of this sort"), Answers()
    submit(engine, answers, 0)
    result = answers.wait(1)[0]
    assert isinstance(result, EngineError)
    assert str(result) == "generating failed: ValueError: nothing of this sort"
    vllm.error = None
    submit(engine, answers, 1, max_tokens=2)
    assert answers.completion(1) == Completion(" 7 8", (7, 8), "length", 2)
    assert [line for line in log_lines if "ValueError" in line]


def test_a_grammar_that_vllm_refuses_is_its_callers_mistake(
    engine: Engine, vllm: FakeVllm, log_lines: list[str]
) -> None:
    vllm.error, answers = RequestError("regex: vLLM refuses it: no NUL"), Answers()
    submit(engine, answers, 0, constraint=Constraint("regex", ("a",)))
    refused = answers.wait(1)[0]
    assert refused is vllm.error
    assert refused.__traceback__ is None, "it would hold the request until a collection"
    assert not log_lines


def test_a_held_output_that_vllm_gives_up_names_the_option(engine: Engine, vllm: FakeVllm) -> None:
    vllm.gives_up, answers = True, Answers()
    submit(engine, answers, 0, constraint=Constraint("choice", ("a", "b")))
    submit(engine, answers, 1)
    found = answers.wait(2)
    assert isinstance(found[0], RequestError)
    assert str(found[0]).startswith("choice: vLLM can't enforce it")
    assert str(found[1]) == "generating failed: vLLM ended it (error)"


def test_an_end_that_the_grammar_does_not_allow_yet_is_an_error(engine: Engine) -> None:
    answers, held = Answers(), Constraint("regex", ("a",))
    sequence = answers.sequence(0, [5, 6], max_tokens=LONG, stop_token_ids=(8,), constraint=held)
    sequence.grammar = MayNotEnd()  # type: ignore[assignment]
    engine.submit([sequence])
    result = answers.wait(1)[0]
    assert isinstance(result, RequestError)
    assert str(result) == "regex: token 8 ended it early, allowed: after a complete text"


class MayNotEnd:
    """A grammar of any tokens."""

    is_complete = may_end = False

    def follow(self, token_id: int) -> None:
        """All are allowed."""


def test_where_vllm_dies_all_are_answered_and_the_process_ends(
    engine: Engine, vllm: FakeVllm, ended: threading.Event, log_lines: list[str]
) -> None:
    vllm.held_after, answers = 0, Answers()
    for number in range(3):
        submit(engine, answers, number)
    assert eventually(lambda: engine.gauges["num_waiting"] == 3)
    vllm.is_dead = True
    for result in answers.wait(3).values():
        assert isinstance(result, OverloadedError)
        assert "try again later" in str(result)
    assert not engine.is_healthy
    assert ended.wait(60)
    with pytest.raises(OverloadedError):
        submit(engine, answers, 3)
    assert [line for line in log_lines if "died" in line]


def test_an_idle_engine_notices_that_vllm_died(
    engine: Engine, vllm: FakeVllm, ended: threading.Event
) -> None:
    vllm.is_dead = True
    assert ended.wait(60)


def test_what_does_not_finish_within_the_grace_is_answered(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    vllm.held_after, answers = 0, Answers()
    submit(engine, answers, 0)
    engine.stop(0.1)
    assert isinstance(answers.wait(1)[0], OverloadedError)
    assert vllm.is_shut_down
    with pytest.raises(OverloadedError, match="the model is being unloaded"):
        engine.change_adapters(files("a"))


def files(*names: str) -> list[AdapterFile]:
    served = (ServedAdapter(name, "/somewhere", local=True, revision=None) for name in names)
    return [AdapterFile(one, Path("/somewhere")) for one in served]


def named(engine: VllmEngine, answers: Answers, number: int, name: str, **more: Any) -> Sequence:
    sequence = answers.sequence(number, [5], **{"max_tokens": 3, **more})
    sequence.lora_name = name
    engine.submit([sequence])
    return sequence


def test_other_adapters_are_served_from_then_on(engine: VllmEngine, vllm: FakeVllm) -> None:
    answers = Answers()
    names = engine.adapters
    engine.change_adapters(files("a", "b"))  # while nothing is computed
    assert list(names) == ["a", "b"]
    for number, name in enumerate(("a", "b")):
        named(engine, answers, number, name)
        answers.completion(number)
    submit(engine, answers, 2)
    answers.wait(3)
    assert vllm.used_adapters == [1, 2, 0]
    with pytest.raises(LoadError, match="adapter bad"):
        engine.change_adapters(files("a", "bad"))
    assert list(names) == ["a", "b"]


def test_who_uses_a_removed_adapter_finishes_before_it_goes(
    engine: VllmEngine, vllm: FakeVllm
) -> None:
    answers = Answers()
    engine.change_adapters(files("a", "b"))
    vllm.held_after = 2
    named(engine, answers, 0, "a", max_tokens=4)
    assert eventually(lambda: vllm.used_adapters == [1])
    engine.change_adapters(files("b"))
    engine.forget_removed_adapters()
    assert vllm.removed_adapters == {1}
    named(engine, answers, 1, "a")
    answers.wait(1)
    assert "lora_name: this adapter has been removed" in str(answers.results[1])
    vllm.held_after = None
    assert len(answers.completion(0).token_ids) == 4
    assert eventually(lambda: not engine.thread.num_unfinished)
    engine.forget_removed_adapters()
    assert vllm.removed_adapters == set()


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_change_that_was_said_not_to_be_made_is_not_made_later(
    engine: VllmEngine, vllm: FakeVllm, has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.change_adapters(files("a"))
    vllm.is_changing = True
    goes_on = threading.Event()
    if not has_begun:
        monkeypatch.setattr(engine.thread, "take_in", goes_on.wait)

    def refuse() -> None:
        raise OverloadedError("the engine is stuck in a step")

    monkeypatch.setattr(engine.thread, "check_running", refuse)
    with pytest.raises(OverloadedError, match="stuck"):
        engine.change_adapters(files("b"))
    monkeypatch.undo()
    vllm.is_changing = False
    goes_on.set()
    assert eventually(lambda: not engine.has_work())
    assert list(engine.adapters) == list(vllm.adapter_keys) == ["a"]
    engine.change_adapters(files("c"))
    assert list(engine.adapters) == list(vllm.adapter_keys) == ["c"]
