"""The largest step that a load tries before it sizes the cache, and the room that it leaves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hf_triton.runtime.errors import LoadError
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.engines.in_flight.largest_step import free_beside_steps, largest_step
from hf_triton.text_generation.engines.in_flight.media_plan import encode_largest
from hf_triton.text_generation.memory.pages import PagedSize, num_pages_of
from hf_triton.text_generation.sequence.source import Source
from tests.support.driving import GIB, setup
from tests.support.tiny_models import tiny_model


@pytest.mark.parametrize("max_model_len, num_tokens", [(4096, 512), (4096, 8192), (200, 64)])
def test_it_has_a_row_of_logits_for_every_sequence_and_ends_a_full_prompt(
    max_model_len: int, num_tokens: int
) -> None:
    size = PagedSize(1001, max_model_len, max_num_seqs=16, num_bytes=0)
    step = largest_step(size, num_tokens)
    (chunk,) = step.prefills
    assert len(step.sampled) == 16
    assert chunk.end == max_model_len - 1
    assert step.num_tokens == min(num_tokens, max_model_len - 1 + 15)
    for sequence in step.sampled:
        assert len(sequence.pages) >= num_pages_of(sequence.num_computed_tokens, size.page_size)
    attended = sum(sequence.num_computed_tokens for sequence in step.decodes)
    assert attended <= size.num_tokens + 16


CPU, SIZE = torch.device("cpu"), PagedSize(99, 100, 8, num_bytes=0)


def no_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


class Taking:
    """A device's memory, and a runner whose steps take a MiB of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._peak = 0
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self._peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: self.take(0))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def take(self, num_bytes: int) -> None:
        self._peak = num_bytes

    def forward(self, step: Step) -> torch.Tensor:
        self.take(2**20)
        return torch.zeros(len(step.sampled), 9)


@pytest.mark.parametrize("encoding, expected", [(0, 2 * 2**20), (2**22, 2**20 + 2**22)])
def test_a_step_has_room_twice_and_what_encodes_before_it(
    encoding: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking = Taking(monkeypatch)
    given, runner = setup(tiny_model("llama")), RunnerSpec("none", lambda *_: taking)
    free = free_beside_steps(given, [], runner, SIZE, encode=lambda: taking.take(encoding))
    assert GIB - free(CPU) == expected


def test_a_step_that_finds_no_memory_at_all_is_told_at_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Taking(monkeypatch)
    given, runner = (
        setup(tiny_model("llama"), max_num_batched_tokens=4096),
        RunnerSpec("", no_memory),
    )
    with pytest.raises(LoadError, match=r"no memory for a step of 4096 tokens \(max_num_batch"):
        free_beside_steps(given, [], runner, SIZE)
    with pytest.raises(LoadError, match="no memory for the largest images or sounds of a pro"):
        free_beside_steps(given, [], runner, SIZE, encode=no_memory)


def test_the_largest_images_are_encoded_and_not_kept() -> None:
    done: list[Any] = []
    features = SimpleNamespace(clear=lambda: done.append("cleared"))
    entry: Any = SimpleNamespace(encode=lambda *prompt: done.append(prompt), features=features)
    source = Source({}, 1)
    given = replace(setup(tiny_model("llama")), largest_prompt=lambda most: ([most], source))
    encode_largest(given, entry, SIZE)
    assert done == [([SIZE.max_model_len], source), "cleared"]
