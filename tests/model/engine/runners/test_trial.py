"""A trial at load refuses wrong runners, and takes right ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine import own_logits
from hf_triton.text_generation.engine.own_logits import difference
from hf_triton.text_generation.engines.in_flight.runner_selection import CACHE, in_pages_by
from hf_triton.text_generation.engines.in_flight.trial import Expected, Trial, text_trial
from hf_triton.text_generation.forward.paged.attention import plain_attention
from hf_triton.text_generation.forward.paged.page_runner import PagedRunner
from hf_triton.text_generation.forward.paged.step import PagedStep
from hf_triton.text_generation.memory.layer_shapes import layer_shapes
from tests.support.tiny_models import shrunk_model, tiny_model

CPU = torch.device("cpu")


def test_a_runner_that_mixes_up_the_second_pages_of_rows_is_refused() -> None:
    def mixed_up(q: Any, keys: Any, values: Any, step: PagedStep, rule: Any) -> torch.Tensor:
        table = step.block_table.clone()
        table[:, 1:] = table[-1:, 1:]
        return plain_attention(q, keys, values, replace(step, block_table=table), rule)

    model = tiny_model("llama")
    trial, shapes = text_trial(model, CPU), layer_shapes(model, CPU)
    expected = trial.expected()
    specs = [in_pages_by(PagedRunner, attend) for attend in (mixed_up, plain_attention)]
    found, why = trial.select(expected, specs[:1], shapes)
    assert found is None
    assert why.startswith("packed: logits differ by ")
    assert trial.select(expected, specs[1:], shapes) == (specs[1], "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_that_shows_short_rows_what_is_behind_them_is_refused(dtype: torch.dtype) -> None:
    """GIT puts places of images before a mask, of text too: it moves away from its columns."""
    model = shrunk_model("git").to(dtype)
    with torch.no_grad():
        for layer in model.git.encoder.layer:
            layer.attention.self.query.weight.mul_(3)  # so that a column of zeros changes little
    trial = text_trial(model, CPU)
    found, why = trial.select(trial.expected(), [CACHE], layer_shapes(model, CPU))
    assert found is None
    assert why.startswith("cache: logits differ by ")


@pytest.fixture
def rounded() -> Trial:
    return text_trial(tiny_model("llama").to(torch.bfloat16), CPU)


def selected(trial: Trial, logits: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if a runner with these logits is taken when they may hardly differ."""
    monkeypatch.setattr(Trial, "logits", lambda *_: logits)
    expected, spec = Expected(trial.expected().logits, 1e-6), RunnerSpec("one", lambda *_: None)
    return trial.select(expected, [spec], [])[0] is spec


def test_in_16_bits_a_runner_may_differ_that_is_as_near_to_float32(
    rounded: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, own = rounded.model, rounded.expected().logits
    before = [(one.data_ptr(), one.dtype) for one in model.parameters()]
    widened = replace(rounded, model=copy.deepcopy(model).float())
    exact = widened.expected().logits
    assert difference(own, exact) > 1e-3
    assert selected(rounded, exact, monkeypatch)
    assert selected(rounded, exact + (exact - own), monkeypatch)  # as far on the other side
    assert not selected(rounded, own + 9 * (own - exact), monkeypatch)
    assert [(one.data_ptr(), one.dtype) for one in model.parameters()] == before


def test_without_room_for_float32_only_the_models_own_logits_count(
    rounded: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = replace(rounded, model=copy.deepcopy(rounded.model).float()).expected().logits
    monkeypatch.setattr(own_logits, "free_bytes", lambda _: 0)
    assert not selected(rounded, exact, monkeypatch)
