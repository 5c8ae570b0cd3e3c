"""What is the in-flight engine's own beside generating: failures, lengths, what it keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_triton.runtime.devices import device
from hf_triton.runtime.errors import (
    DeviceLostError,
    EngineError,
    LoadError,
    OverloadedError,
    RequestError,
)
from hf_triton.text_generation.engines.in_flight import in_flight_engine
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from tests.support.driving import Answers, Completion, running, setup
from tests.support.tiny_models import CONTEXT, mixed_load, tiny_model
from tests.support.triton import eventually

pytestmark = pytest.mark.usefixtures("storage_kind")


@pytest.fixture
def model() -> Any:
    return tiny_model("llama")  # anew for each engine, which owns it from then on


@pytest.fixture
def engine(model: Any) -> Iterator[InFlightEngine]:
    with running(InFlightEngine(setup(model, max_num_seqs=2, max_queue_size=3))) as engine:
        assert isinstance(engine, InFlightEngine)
        yield engine


def test_more_sequences_than_ever_fit_are_the_requests_own_fault(engine: InFlightEngine) -> None:
    answers = Answers()
    with pytest.raises(RequestError) as raised:
        engine.submit([answers.sequence(number, [5, 6], max_tokens=3) for number in range(6)])
    assert str(raised.value) == (
        "n: got 6 sequences, n of each prompt, allowed: at most 5 in one request (max_num_seqs 2 + "
        "max_queue_size 3)"
    )


def test_a_step_of_which_everything_was_cancelled_is_no_failure(
    engine: InFlightEngine, log_lines: list[str]
) -> None:
    engine.step()
    assert not [line for line in log_lines if "failed" in line]


def test_an_engine_whose_device_is_lost_ends_and_answers_everyone(
    engine: InFlightEngine, log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> torch.Tensor:
        raise DeviceLostError("cuda:0 can't compute any more")

    engine.runner.forward = lost  # type: ignore[assignment,method-assign]
    monkeypatch.setattr(device, "check_device_works", lost)
    answers = Answers()
    engine.submit([answers.sequence(number, [5, 6], max_tokens=4) for number in range(3)])
    results = answers.wait(3)
    assert eventually(lambda: not engine.thread.is_alive)
    assert [type(results[n]) for n in range(3)] == [EngineError, EngineError, OverloadedError]
    assert not engine.is_healthy
    assert len([line for line in log_lines if "the thread of the in_flight engine died" in line])


@pytest.mark.threat("batch-mates")
def test_a_tokenizer_that_fails_fails_its_own_sequence_only(engine: InFlightEngine) -> None:
    answers = Answers()
    bad, good = (answers.sequence(number, [5, 6], max_tokens=4) for number in range(2))

    def broken(*_: Any, **__: Any) -> str:
        raise ValueError("no such id")

    bad.detokenizer = Detokenizer(SimpleNamespace(decode=broken), [5, 6])
    engine.submit([bad, good])
    results = answers.wait(2)
    assert isinstance(results[0], EngineError)
    assert str(results[0]) == "decoding the output failed: no such id"
    assert isinstance(results[1], Completion)


def test_a_prompt_and_output_of_the_whole_context_fit(model: Any) -> None:
    (asked,) = mixed_load(1)
    prompt = (asked.prompt * CONTEXT)[: CONTEXT - 5]
    answers = Answers()
    with running(InFlightEngine(setup(model, max_num_seqs=2))) as engine:
        engine.check_length(len(prompt), 5)
        engine.submit([answers.sequence(n, prompt, max_tokens=5) for n in range(2)])
        assert len(answers.completion(0).token_ids) == 5
        assert answers.completion(0).num_input_tokens == CONTEXT - 5
        assert engine.output_length(CONTEXT - 5, None, clamps=False) == 5
        assert engine.output_length(1, None, clamps=True) == CONTEXT - 1
        assert engine.output_length(CONTEXT - 5, 32_000, clamps=True) == 5
        assert engine.output_length(CONTEXT - 5, 32_000, clamps=False) == 32_000
        with pytest.raises(RequestError) as raised:
            engine.check_length(len(prompt), 6)
    assert str(raised.value) == (
        "max_tokens: the prompt has 123 tokens and max_tokens is 6, together 129; "
        "this model's context holds 128"
    )


def test_the_description_names_runner_and_size(engine: InFlightEngine, storage_kind: str) -> None:
    expected = {
        "compiled": "fused), 16 pages of 16 tokens, at most 2 sequences of 128",
        "few pages": "packed), 34 pages of 4 tokens, at most 2 sequences of 128",
    }
    assert engine.description == f"in_flight engine ({expected[storage_kind]}, KV cache 0.00 GiB"


def test_a_cache_that_cannot_be_allocated_is_one_line(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr(in_flight_engine, "PagedCache", refuse)
    with pytest.raises(LoadError) as raised:
        InFlightEngine(setup(model, max_num_seqs=2)).start()
    expected = "no memory for a KV cache of 0.00 GiB: Unable to allocate"
    assert str(raised.value) == expected


def test_nothing_is_kept_of_what_ends() -> None:
    answers = Answers()
    with running(InFlightEngine(setup(tiny_model("llama"), eos=[7]))) as engine:
        ending = answers.sequence(0, [1, 2, 3], max_tokens=60, logit_bias=((7, 99.0),))
        kept = weakref.ref(ending)
        engine.submit([ending])
        del ending
        assert answers.completion(0).finish_reason == "stop"
        engine.submit([answers.sequence(1, [1, 2], max_tokens=9, ignore_eos=True)])
        answers.wait(2)
        assert eventually(lambda: gc.collect() >= 0 and kept() is None)
