"""A model whose layers ``device_map`` has spread over two GPUs: what meets is on one device, and
the tokens are the model's own.

The GPUs are pretended ones, see split_devices.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from hf_triton.runtime.devices import device
from hf_triton.text_generation.engines.in_flight import plan, runner_selection
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.runner_selection import (
    CACHE,
    UnsupportedModelError,
    select_runner,
)
from hf_triton.text_generation.forward.paged.attention import plain_attention
from hf_triton.text_generation.forward.paged.graphs import with_cuda_graphs
from hf_triton.text_generation.forward.paged.page_runner import PagedRunner
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.memory.paged_cache import PagedCache, PagedSize
from tests.model.engine.split_devices import FIRST, SECOND, pretended_gpus, split_in_two
from tests.support.driving import Answers, setup
from tests.support.tiny_models import Asked, mixed_load, reference, tiny_model

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2-sliding": {},
    "gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
}
OPTIONS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64}


def split(name: str = "llama") -> Any:
    model = tiny_model(name, **MODELS[name])
    split_in_two(model)
    return model


def prepared(model: Any) -> InFlightEngine:
    """An engine that steps in the test's own thread, which is the one that pretends."""
    given = dataclasses.replace(setup(model, **OPTIONS), device=FIRST, compiled=False)
    engine = InFlightEngine(given)
    engine.prepare()
    return engine


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretended GPUs count no memory."""
    monkeypatch.setattr(plan, "free_beside_steps", lambda setup, *_, **__: setup.free_bytes)


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_generates_its_own_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_selection, "select_attention", lambda *_: plain_attention)
    asked = [Asked(one.prompt, min(one.max_tokens, 6)) for one in mixed_load(3)]
    expected = reference(tiny_model(name, **MODELS[name]), asked)
    with pretended_gpus():
        engine = prepared(split(name))
        assert engine.runner.name == "packed"
        answers = Answers()
        sequences = [
            answers.sequence(number, one.prompt, max_tokens=one.max_tokens)
            for number, one in enumerate(asked)
        ]
        engine.add(sequences)
        while engine.has_work():
            engine.step()
    assert [tuple(sequence.token_ids) for sequence in sequences] == expected


@pytest.mark.parametrize("name", MODELS)
def test_a_split_model_can_go_through_transformers_cache(name: str) -> None:
    with pretended_gpus():
        model = split(name)
        model._can_set_attn_implementation = lambda: False
        assert select_runner(model, layer_shapes(model, FIRST), FIRST, compiled=False) is CACHE


def test_keys_and_values_lie_with_their_layers() -> None:
    with pretended_gpus():
        model = split()
        shapes = layer_shapes(model, FIRST)
        cache = PagedCache(shapes, PagedSize(3, 16, 2, 0))
        assert [shape.device for shape in shapes] == [FIRST, SECOND]
        assert [keys.device for keys in cache.keys] == [FIRST, SECOND]
        assert device.devices_of(model) == [FIRST, SECOND]


def test_a_tensor_that_is_left_behind_shows() -> None:
    with pretended_gpus():
        model = split()
        shapes = layer_shapes(model, FIRST)
        shapes[1] = shapes[0]  # the second layer's keys and values on the first GPU
        with pytest.raises(UnsupportedModelError, match="same device"):
            select_runner(model, shapes, FIRST, compiled=False)


def test_no_cuda_graph_is_captured_over_two_gpus() -> None:
    with pretended_gpus():
        model = split()
        cache = PagedCache(layer_shapes(model, FIRST), PagedSize(3, 16, 2, 0))
        runner = PagedRunner(model, cache, FIRST)
        assert with_cuda_graphs(runner, FIRST) is runner


def test_each_gpu_of_a_split_model_is_asked_whether_it_still_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(device, "check_device_works", asked.append)
    with pretended_gpus():
        device.check_devices_work(split())
    assert asked == [FIRST, SECOND]
