"""States of convolutions and recurrences in rows of tables beside pages: their sizes, their copies,
their share of a prompt, and that a wrong one is found at load.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engines.in_flight.in_flight_engine import InFlightEngine
from hf_triton.text_generation.engines.in_flight.runner_selection import (
    STATES,
    UnsupportedModelError,
    select_runner,
)
from hf_triton.text_generation.engines.in_flight.trial import dummy_sequence
from hf_triton.text_generation.forward.paged.step import PagedStep
from hf_triton.text_generation.forward.states import compiled_functions, own_functions
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from hf_triton.text_generation.memory.pages import PagedSize
from hf_triton.text_generation.memory.state_pages import StatePages
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Snapshot
from tests.support.driving import generate_all, running, setup
from tests.support.tiny_models import Asked, mixed_load, reference, tiny_model

CPU = torch.device("cpu")
WAYS = ("compiled", "pages")
GIB = 2**30


def test_what_each_layer_keeps_is_read_off_the_model() -> None:
    states, keys = layer_shapes(tiny_model("qwen3-next").to(torch.bfloat16), CPU)
    assert (states.num_kv_heads, states.bytes_per_token) == (0, 0)
    assert [(state.kind, state.index) for state in states.states] == [
        ("conv", 0),
        ("recurrent", 0),
    ]
    sizes = [math.prod(state.shape) * state.dtype.itemsize for state in states.states]
    assert states.state_bytes == sum(sizes) > 0
    assert (keys.bytes_per_token, keys.state_bytes) == (2 * 16 * 2, 0)
    both = layer_shapes(tiny_model("falcon-h1"), CPU)[0]
    assert both.num_kv_heads == 2
    assert len(both.states) == 2


def new_where(is_new: Any) -> Any:
    """Says anew which of a step's chunks begin a sequence, from their rows."""

    def replaced(runs: Any) -> Any:
        return lambda *args: [run._replace(begins=is_new(run)) for run in runs(*args)]

    return replaced


def of_padding(slots: Any) -> Any:
    """A sequence goes on from the state of padding."""
    return property(lambda step: slots.func(step) * 0)


def selected(compiled: bool, architecture: str) -> RunnerSpec | None:
    """None where no runner is right."""
    model = tiny_model(architecture)
    try:
        return select_runner(model, layer_shapes(model, CPU), CPU, compiled=compiled)
    except UnsupportedModelError:
        return None


@pytest.mark.parametrize("architecture", ["mamba", "mamba2", "qwen3-next", "lfm2", "jamba"])
def test_states_are_packed_in_bfloat16_too(architecture: str) -> None:
    model = tiny_model(architecture).to(torch.bfloat16)
    assert select_runner(model, layer_shapes(model, CPU), CPU, compiled=True) is STATES


@pytest.mark.parametrize(
    "compiled, owner, name, fault",
    [
        (True, compiled_functions, "runs_of", new_where(lambda run: 0)),
        (True, compiled_functions, "runs_of", new_where(lambda run: run.begins or run.slot > 1)),
        (False, own_functions, "runs_of", new_where(lambda run: 0)),
        (False, own_functions, "runs_of", new_where(lambda run: 1)),
        (False, PagedStep, "long_slots", of_padding),
    ],
)
@pytest.mark.parametrize("architecture", ["mamba2", "qwen3-next"])
def test_the_trial_run_finds_a_wrong_state(
    architecture: str,
    compiled: bool,
    owner: Any,
    name: str,
    fault: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = selected(compiled, architecture)
    assert right is STATES if compiled else right is not None
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    found = selected(compiled, architecture)
    assert found is not STATES if compiled else found is None or found.name == "cache"


@pytest.mark.usefixtures("storage_kind")
@pytest.mark.parametrize("storage_kind", WAYS, indirect=True)
@pytest.mark.parametrize("name", ["qwen3-next", "mamba"])
def test_a_chat_goes_on_from_the_state_of_its_last_turn_and_others_begin_anew(name: str) -> None:
    model = tiny_model(name)
    prompt = [token for one in mixed_load(6) for token in one.prompt][:50]
    (answer,) = reference(model, [Asked(prompt, 9)])
    asked = [Asked([*prompt, *answer, 5, 6], 9), Asked([*prompt[:40], 5, 6], 9), Asked(prompt, 9)]
    expected = reference(model, asked)
    engine = InFlightEngine(setup(model, max_num_seqs=2, max_num_batched_tokens=16))
    with running(engine):
        assert generate_all(engine, [Asked(prompt, 9)], at_first=1) == [answer]
        assert generate_all(engine, asked, at_first=2) == expected
        assert engine.metrics.num_reused_prompt_tokens == len(prompt) + len(answer) - 1


@pytest.mark.usefixtures("storage_kind")
@pytest.mark.parametrize("storage_kind", WAYS, indirect=True)
@pytest.mark.parametrize("at_first", [1, 4], ids=["one after another", "together"])
@pytest.mark.parametrize("name", ["qwen3-next", "lfm2"])
def test_a_prompt_goes_on_from_where_two_before_it_parted(name: str, at_first: int) -> None:
    """The second one leaves its state there, in the middle of a chunk."""
    model = tiny_model(name)
    system = [token for one in mixed_load(6) for token in one.prompt][:41]
    asked = [Asked([*system, *range(tail, tail + 9)], 6) for tail in (1, 20, 40, 60)]
    expected = reference(model, asked)
    engine = InFlightEngine(setup(model, max_num_seqs=8, max_num_batched_tokens=28))
    with running(engine):
        assert generate_all(engine, asked, at_first=at_first) == expected
        assert engine.metrics.num_reused_prompt_tokens == 2 * 32  # whole pages


@pytest.mark.parametrize("storage_kind", WAYS, indirect=True)
def test_where_generate_clamps_its_prompt_alone_no_answer_is_shared(storage_kind: str) -> None:
    model = tiny_model("mamba2", time_step_limit=(0.8, 2.0))
    prompt = mixed_load(3)[2].prompt
    (answer,) = reference(model, [Asked(prompt, 9)])
    asked = [Asked([*prompt, *answer, 5, 6], 9), *mixed_load(5)]
    expected = reference(model, asked)
    assert expected[0] != reference(tiny_model("mamba2"), asked[:1])[0]
    engine = InFlightEngine(setup(model, max_num_seqs=2, max_num_batched_tokens=16))
    with running(engine):
        assert engine.runner.name == "packed, states"
        assert generate_all(engine, [Asked(prompt, 9)], at_first=1) == [answer]
        assert generate_all(engine, asked, at_first=2) == expected
        assert engine.metrics.num_reused_prompt_tokens == 0


@pytest.mark.usefixtures("storage_kind")
@pytest.mark.parametrize("storage_kind", ["few pages"], indirect=True)
def test_an_answer_that_is_computed_again_is_not_clamped_as_a_prompt() -> None:
    model = tiny_model("mamba2", time_step_limit=(0.8, 2.0))
    asked = [Asked(one.prompt[:9], 40) for one in mixed_load(6, seed=4)]
    expected = reference(model, asked)
    engine = InFlightEngine(setup(model, max_num_seqs=3, max_model_len=56))
    with running(engine):
        assert generate_all(engine, asked, at_first=6) == expected
        assert engine.metrics.num_preemptions > 2


def test_a_snapshot_that_its_sequence_does_not_live_to_leave_is_forgotten() -> None:
    space = StatePages(PagedSize(40, 640, 4, 0), snapshots=True)
    prompt = list(range(90))
    first, second, third = (dummy_sequence([*prompt[:60], n], SamplingParams(1)) for n in range(3))
    for sequence in (first, second):
        space.allocate(sequence)
    assert second.snapshot == Snapshot(48, 4)
    assert space.find(third).is_worth_waiting_for
    space.note_computed(second, 40)
    space.finish_step()
    space.free(second)
    assert not space.find(third).is_worth_waiting_for


def test_a_row_that_a_sequence_needs_takes_no_snapshot() -> None:
    space = StatePages(PagedSize(40, 640, 3, 0), snapshots=True)
    made = [dummy_sequence([*range(60), n], SamplingParams(1)) for n in range(2)]
    for sequence in made:
        space.allocate(sequence)
    assert made[1].snapshot == Snapshot(48, 3)
    space.allocate(dummy_sequence([7] * 40, SamplingParams(1)))
    assert made[1].snapshot is None
    assert not space.kept
