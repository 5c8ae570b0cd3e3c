"""The short run by which runners are tried: what a model's own ``generate`` computes of a few
prompts, what a runner does, and how far apart they may be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.own_logits import difference, own_logits
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.memory.kv_cache_manager import new_space
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedCache, PagedSize
from hf_triton.text_generation.memory.pages import PAGE_SIZES, num_pages_of
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source

from .warm_up import dummy_sequence

# The largest difference of logits, as a share of their range. Runners sum in another order than the
# model and some round less often, so results differ. In 16 bits it is _TIMES_NOISE what the model's
# own logits change by where half of a prompt is decoded token by token, at least _TIMES_EPS the
# type's last bit, at most WIDEST.
EXACT = 1e-3  # float32
_TIMES_NOISE, _TIMES_EPS, WIDEST = 4.0, 3.0, 8e-2
_TRIAL_LEN = 32
TRIAL_WIDTH = 4
WIDTHS = ("sliding_window", "attention_chunk_size", "floor_scale", "log_scaling_n_floor")


@dataclass(frozen=True)
class Expected:
    """``logits`` (prompts, forced tokens + 1, vocab), float32, and how far from them a runner's may
    be, as a share of their range.
    """

    logits: torch.Tensor
    tolerance: float


class TrialRun:
    """Three prompts of 7, 4 and 18 tokens, the last longer than a page on a CPU, and two more
    tokens for each; ``sources`` of some, by the id of the prompt.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.device = model, device
        vocab_size = int(model.config.get_text_config().vocab_size)
        numbers = torch.randint(0, vocab_size, (3, 20), generator=torch.Generator().manual_seed(0))
        pad = getattr(model.config.get_text_config(), "pad_token_id", None)
        if isinstance(pad, int) and 0 <= pad < vocab_size:
            numbers[2, [2, 12]] = pad  # some count positions of all other tokens
        lengths = (7, 4, 18)
        self.prompts = [numbers[row, :length].tolist() for row, length in enumerate(lengths)]
        self.num_step_tokens, self.length = 5, _TRIAL_LEN
        self.sources: dict[int, Source] = {}
        self.cuts_sources = True
        self.forced = [
            numbers[row, length : length + 2].tolist() for row, length in enumerate(lengths)
        ]

    def expected(self) -> Expected:
        """What the model's own generate computes, prompt by prompt."""
        pairs = zip(self.prompts, self.forced, strict=True)
        logits = [self.own_logits(prompt, forced) for prompt, forced in pairs]
        return Expected(torch.stack(logits), tolerance(self.model, partial(self.noise, logits)))

    def noise(self, logits: list[torch.Tensor]) -> float:
        """By how much ``logits`` change where half of a prompt is decoded token by token."""
        prompt, own = self.prompts[-1], logits[-1]
        half = len(prompt) // 2
        decoded = self.own_logits(prompt[:half], prompt[half:] + self.forced[-1])
        return difference(decoded[-len(own) :], own)

    def own_logits(self, prompt: list[int], forced: list[int]) -> torch.Tensor:
        """(forced tokens + 1, vocab) of the model's own generate."""
        tokens = torch.tensor([prompt], device=self.device)
        return own_logits(self.model, tokens, torch.ones_like(tokens), [forced])[0]

    def sequences(self) -> list[Sequence]:
        """The prompts as the engine is given them."""
        params = SamplingParams(max_tokens=len(self.forced[0]) + 1)
        sequences = [dummy_sequence(prompt, params) for prompt in self.prompts]
        for sequence, prompt in zip(sequences, self.prompts, strict=True):
            sequence.source = self.sources.get(id(prompt))
        return sequences

    def run(self, runner: Runner, *, chunked_prefill: bool = True) -> torch.Tensor:
        """The same logits (prompts, forced tokens + 1, vocab) as the engine computes them: prompts
        join while others decode, at most ``num_step_tokens`` a step.
        """
        sequences = self.sequences()
        cache = runner.cache
        scheduler = Scheduler(
            len(sequences),
            self.num_step_tokens,
            new_space(cache.shapes, cache.size, shares=False),
            chunked_prefill=chunked_prefill,
            cuts_sources=self.cuts_sources,
        )
        return logits_after(sequences, self.forced, scheduler, runner)


def logits_after(
    sequences: list[Sequence], forced: list[list[int]], scheduler: Scheduler, runner: Runner
) -> torch.Tensor:
    """What a runner computes of sequences whose tokens are ``forced``, step by step -> (sequences,
    forced tokens + 1, vocab), float32.
    """
    scheduler.add(sequences)
    num_logits = len(forced[0]) + 1
    logits: dict[tuple[int, int], torch.Tensor] = {}
    while scheduler.has_work:
        step = scheduler.schedule()
        for sequence, row_logits in zip(step.sampled, runner.compute(step), strict=True):
            row, num_forced = sequences.index(sequence), len(sequence.token_ids)
            logits[row, num_forced] = row_logits.to(torch.float32, copy=True)
            sequence.token_ids += forced[row][num_forced : num_forced + 1]
        done = [s for s in step.sampled if (sequences.index(s), num_logits - 1) in logits]
        scheduler.retire(done)
    rows = range(len(sequences))
    return torch.stack(
        [torch.stack([logits[row, step] for step in range(num_logits)]) for row in rows]
    )


def tolerance(model: Any, noise: Callable[[], float]) -> float:
    """The largest difference that rounding makes, given what the model's own logits differ by from
    one way of decoding to another. A quantized layer may round its input to 8 bits: where the last
    bit of a sum differs, it may round to the next of 256 values.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        return WIDEST
    if model.dtype == torch.float32:
        return EXACT
    least = _TIMES_EPS * torch.finfo(model.dtype).eps
    return min(WIDEST, max(least, _TIMES_NOISE * noise()))


def trial_logits(spec: RunnerSpec, shapes: list[LayerShape], trial: TrialRun) -> torch.Tensor:
    """A trial run's, over a cache of its own, full of what another sequence may have left."""
    num, page_size = len(trial.prompts), PAGE_SIZES[trial.device.type]
    num_pages = num * (num_pages_of(trial.length, page_size) + 1) + 1  # none is preempted
    size = PagedSize(num_pages, trial.length, num, num_bytes=0, page_size=page_size)
    cache = PagedCache(shapes, size)
    fill_with_nan(cache)
    runner = spec(trial.model, cache, trial.device)
    return trial.run(runner, chunked_prefill=spec.chunked_prefill)


def fill_with_nan(cache: PagedCache) -> None:
    """As other sequences may have left it: what a runner reads of them shows in its logits."""
    kept = (*cache.keys, *cache.values, *cache.indexer_keys, *itertools.chain(*cache.states))
    for stored in kept:
        stored.fill_(torch.nan if stored.is_floating_point() else 1)
