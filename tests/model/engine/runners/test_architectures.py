"""For every architecture the in-flight engine's greedy tokens are ``model.generate``'s, token for
token, while prompts of mixed lengths join and leave in mid-flight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import (
    CACHED,
    CONTEXT,
    GPT_NEO,
    LLAMA4,
    PACKED,
    STATES,
    WINDOW,
    mixed_load,
    random_model,
    reference,
    tiny_model,
)

ASKED = mixed_load(10)
# One of each kind of attention: shared heads, windows, both by layer, soft caps, scales.
OWN_ATTENTION = ("falcon-rotary", "gemma2", "gemma3", "gpt2", "mistral", "phi", "qwen2-sliding")
CHUNKED = {"max_num_seqs": 4, "max_num_batched_tokens": 12}


def varied_reference(model: Any) -> list[tuple[int, ...]]:
    """Many different tokens, or equality would say little."""
    tokens = reference(model, ASKED)
    assert len({token for row in tokens for token in row}) > 12
    return tokens


def tokens_in_flight(
    model: Any, at_first: int = 7, **options: Any
) -> tuple[list[tuple[int, ...]], str, list[Step]]:
    engine = InFlightEngine(setup(model, **{**CHUNKED, **options}))
    with running(engine):
        steps = recorded(engine)
        tokens = generate_all(engine, ASKED, at_first)
    return tokens, engine.runner.name, steps


def steps_of(
    model: Any, runner: str, expected: list[tuple[int, ...]], **options: Any
) -> list[Step]:
    """The steps by which that runner computed those tokens."""
    tokens, used, steps = tokens_in_flight(model, **options)
    assert used == runner
    assert tokens == expected
    return steps


def check(name: str) -> None:
    runner = "cache" if name in CACHED else "packed, states" if name in STATES else "packed"
    model = tiny_model(name)
    assert_mixed(steps_of(model, runner, varied_reference(model)))


def recorded(engine: InFlightEngine) -> list[Step]:
    steps: list[Step] = []
    forward: Callable[[Step], torch.Tensor] = engine.runner.forward

    def recording(step: Step) -> torch.Tensor:
        steps.append(step)
        return forward(step)

    engine.runner.forward = recording  # type: ignore[method-assign]
    return steps


def assert_mixed(steps: list[Step]) -> None:
    """Chunks of prompts ran beside decodes, several sequences decoded at once, and some left."""
    assert max(len(one.prompt) for one in ASKED) > 2 * WINDOW
    assert any(step.decodes and step.prefills for step in steps)
    assert any(not chunk.is_last for step in steps for chunk in step.prefills)
    assert any(chunk.start and step.decodes for step in steps for chunk in step.prefills)
    assert max(len(step.decodes) for step in steps) == CHUNKED["max_num_seqs"]
    counts = [len(step.decodes) for step in steps]
    assert any(later < earlier for earlier, later in itertools.pairwise(counts))


@pytest.mark.usefixtures("not_fused")
@pytest.mark.parametrize("name", [*PACKED, *STATES])
def test_tokens_by_the_models_own_functions_are_generates(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", [*CACHED, *STATES])
def test_tokens_of_what_keeps_more_than_keys_and_values_are_generates(name: str) -> None:
    check(name)


@pytest.mark.parametrize("storage_kind", ["pages"], indirect=True)
@pytest.mark.parametrize("name", OWN_ATTENTION)
@pytest.mark.usefixtures("as_on_a_gpu")
def test_tokens_by_varlen_attention_are_generates(name: str, storage_kind: str) -> None:
    check(name)


@pytest.mark.parametrize("storage_kind", ["few pages"], indirect=True)
@pytest.mark.parametrize(
    "name", ["gemma3", "gpt2", "llama", "falcon-h1", "lfm2", "mamba", "qwen3-next"]
)
def test_tokens_are_generates_where_pages_are_few(name: str, storage_kind: str) -> None:
    model = tiny_model(name)
    expected = varied_reference(model)
    runner = "packed, states" if name in STATES else "packed"
    steps = steps_of(model, runner, expected, max_model_len=56, at_first=len(ASKED))
    assert any(s.num_preemptions for step in steps for s in step.decodes)


def test_a_local_window_follows_each_rows_position() -> None:
    model = random_model("gpt_neo", **GPT_NEO)
    expected = varied_reference(model)
    assert_mixed(steps_of(model, "packed", expected))
    assert reference(random_model("gpt_neo", **{**GPT_NEO, "window_size": 99}), ASKED) != expected


def test_chunked_attention_and_its_temperature_follow_each_tokens_position() -> None:
    model = random_model("llama4_text", **LLAMA4)
    expected = varied_reference(model)
    assert_mixed(steps_of(model, "packed", expected))
    for without in ({"attention_chunk_size": CONTEXT}, {"attn_temperature_tuning": False}):
        assert reference(random_model("llama4_text", **{**LLAMA4, **without}), ASKED) != expected
