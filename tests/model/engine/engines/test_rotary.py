"""Rotary embeddings whose frequencies depend on a batch's longest sequence."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hf_triton.runtime.fused.reading.attention import stable_length
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.plan import settle_rotary
from hf_triton.text_generation.engines.in_flight.runner_selection import UnsupportedModelError
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import CONTEXT, mixed_load, reference, tiny_model

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def rotary(model: Any) -> Any:
    return next(module for module in model.modules() if hasattr(module, "rope_type"))


def test_dynamic_scaling_gives_generates_tokens_and_is_asked_no_more() -> None:
    model, asked = tiny_model("llama", rope_parameters=DYNAMIC), mixed_load(8)
    expected = reference(model, asked)
    assert rotary(model).rope_type == "dynamic"
    with running(InFlightEngine(setup(model, max_num_seqs=4))) as engine:
        assert engine.max_model_len == CONTEXT
        assert generate_all(engine, asked, at_first=5) == expected
    assert rotary(model).rope_type == "default"


def test_sequences_that_may_change_the_others_are_refused() -> None:
    model = tiny_model("llama", rope_parameters=DYNAMIC)
    with pytest.raises(UnsupportedModelError, match="more than 128 tokens changes the dynamic"):
        settle_rotary(model, CONTEXT + 1)
    assert rotary(model).rope_type == "dynamic"


def test_each_kind_of_layer_is_settled_by_itself() -> None:
    kinds = {"full_attention": "dynamic", "sliding_attention": "yarn"}
    module = SimpleNamespace(rope_type=kinds, original_max_seq_len=64)
    settle_rotary(SimpleNamespace(modules=lambda: [module]), 64)
    assert module.rope_type == {"full_attention": "default", "sliding_attention": "yarn"}


def test_the_shortest_length_of_any_kind_of_layer_keeps_longrope_as_it_is() -> None:
    def longrope(length: int) -> dict[str, Any]:
        return {"rope_type": "longrope", "original_max_position_embeddings": length}

    assert stable_length(SimpleNamespace(rope_parameters=longrope(64))) == 64
    kinds = {"full_attention": longrope(64), "sliding_attention": longrope(32)}
    assert stable_length(SimpleNamespace(rope_parameters=kinds)) == 32
    assert stable_length(SimpleNamespace(rope_parameters=DYNAMIC)) is None
    assert stable_length(SimpleNamespace(rope_parameters=None)) is None
