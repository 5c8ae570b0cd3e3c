"""Dummy sequences, computed at load: they show whether a runner gives the logits of the model's own
``generate``, and whether it computes drafts; and they warm up what requests would wait for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.own_logits import difference, own_logits
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Draft
from hf_triton.text_generation.forward.transformers.transformers_runner import Runner
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedCache, PagedSize
from hf_triton.text_generation.memory.pages import PAGE_SIZES, num_pages_of
from hf_triton.text_generation.memory.state_pages import KVCacheManager, new_space
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Token, Update
from hf_triton.text_generation.sequence.source import Source

# The largest difference of logits, as a share of their range. Runners sum in another order than the
# model and some round less often, so results differ. In 16 bits it is _TIMES_NOISE what the model's
# own logits change by where half of a prompt is decoded token by token, at least _TIMES_EPS the
# type's last bit, at most WIDEST.
EXACT = 1e-3  # float32
_TIMES_NOISE, _TIMES_EPS, WIDEST = 4.0, 3.0, 8e-2
_TRIAL_LEN = 32
TRIAL_WIDTH = 4
WIDTHS = ("sliding_window", "attention_chunk_size", "floor_scale", "log_scaling_n_floor")
_DRAFT_LENGTHS = (5, 3)  # of the prompts by which drafts are tried
_NUM_DRAFT_TOKENS = 3  # that follow each of them

_WARM_UP_LENGTHS = (3, 16, 64)  # of prompts
_WARM_UP_OUTPUT = 3  # tokens

_EVERY_OPTION = SamplingParams(
    _WARM_UP_OUTPUT,
    min_tokens=1,
    temperature=0.7,
    top_k=5,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    bad_token_ids=((1,), (0, 0)),
    logit_bias=((0, 1.0),),
    num_logprobs=1,
    seed=0,
)


class _NoRecipient:
    streams = False
    request_id = ""

    def take(self, update: Update) -> None:
        raise AssertionError("a warm-up is never published")

    def flush(self) -> None:
        raise AssertionError("a warm-up is never published")

    def fail(self, error: Exception) -> None:
        raise AssertionError("a warm-up is never published")


def dummy_sequence(prompt_token_ids: list[int], params: SamplingParams) -> Sequence:
    return Sequence(prompt_token_ids, params, _NoRecipient(), Detokenizer(None, prompt_token_ids))


@dataclass(frozen=True)
class Expected:
    """``logits`` (prompts, forced tokens + 1, vocab), float32; ``tolerance`` is a share of their
    range.
    """

    logits: torch.Tensor
    tolerance: float


class TrialRun:
    """Prompts of 7, 4 and 18 tokens, the last longer than a page on a CPU, and two forced tokens
    for each; ``sources`` by the id of the prompt.
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
        source = self.sources.get(id(prompt))
        tokens = torch.tensor([prompt], device=self.device)
        inputs = {} if source is None else source.on(self.device, self.model.dtype)
        return own_logits(self.model, tokens, torch.ones_like(tokens), [forced], **inputs)[0]

    def sequences(self) -> list[Sequence]:
        params = SamplingParams(max_tokens=len(self.forced[0]) + 1)
        sequences = [dummy_sequence(prompt, params) for prompt in self.prompts]
        for sequence, prompt in zip(sequences, self.prompts, strict=True):
            sequence.source = self.sources.get(id(prompt))
        return sequences

    def run(self, runner: Runner, *, chunked_prefill: bool = True) -> torch.Tensor:
        """The same logits as the engine computes them: prompts join while others decode, at most
        ``num_step_tokens`` a step.
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
    """A runner's logits over ``forced`` tokens -> (sequences, forced tokens + 1, vocab) float32."""
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
    """The largest difference that rounding makes, given by how much the model's own logits change
    between two ways of decoding. A quantized layer may round its input to 8 bits, where one last
    bit decides between two of 256 values.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        return WIDEST
    if model.dtype == torch.float32:
        return EXACT
    least = _TIMES_EPS * torch.finfo(model.dtype).eps
    return min(WIDEST, max(least, _TIMES_NOISE * noise()))


def trial_logits(spec: RunnerSpec, shapes: list[LayerShape], trial: TrialRun) -> torch.Tensor:
    """The logits of a trial over a cache full of NaN, which other sequences might leave."""
    num, page_size = len(trial.prompts), PAGE_SIZES[trial.device.type]
    num_pages = num * (num_pages_of(trial.length, page_size) + 1) + 1  # none is preempted
    size = PagedSize(num_pages, trial.length, num, num_bytes=0, page_size=page_size)
    cache = PagedCache(shapes, size)
    for stored in (
        *cache.keys,
        *cache.values,
        *cache.indexer_keys,
        *itertools.chain(*cache.states),
    ):
        stored.fill_(torch.nan if stored.is_floating_point() else 1)
    runner = spec(trial.model, cache, trial.device)
    return trial.run(runner, chunked_prefill=spec.chunked_prefill)


def computes_drafts(
    scheduler: Scheduler, space: KVCacheManager, runner: Runner, vocab_size: int
) -> bool:
    """Whether drafts get the logits of the same tokens one by one; logs the difference.
    ``scheduler`` and ``space`` are empty before and after.
    """
    longest = runner.cache.size.max_model_len - _NUM_DRAFT_TOKENS - 1
    lengths = [one for one in _DRAFT_LENGTHS if one <= longest][: scheduler.max_num_seqs]
    if not lengths:
        return False
    drafted, one_by_one = _draft_logits(scheduler, space, runner, lengths, vocab_size)
    found = difference(drafted, one_by_one)
    if found <= (EXACT if drafted.dtype == torch.float32 else WIDEST):
        return True
    log.info(f"nothing is drafted: logits of drafts differ by {found:.2g} of their range")
    return False


def _draft_logits(
    scheduler: Scheduler, space: KVCacheManager, runner: Runner, lengths: list[int], vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sequences, tokens, vocab) as drafts, and one by one."""
    random = torch.Generator().manual_seed(0)
    sizes = len(lengths), _NUM_DRAFT_TOKENS
    forced = torch.randint(0, vocab_size, sizes, generator=random).tolist()

    def new_sequences() -> list[Sequence]:
        params = SamplingParams(_NUM_DRAFT_TOKENS + 1)
        return [dummy_sequence(list(range(length)), params) for length in lengths]

    one_by_one = logits_after(new_sequences(), forced, scheduler, runner)[:, 2:]
    sequences = new_sequences()
    scheduler.add(sequences)
    while not all(sequence.token_ids for sequence in sequences):
        step = scheduler.schedule()
        runner.compute(step)
        for sequence in step.sampled:
            sequence.token_ids = [forced[sequences.index(sequence)][0]]
    step = scheduler.schedule()
    order = [sequences.index(sequence) for sequence in step.decodes]
    for sequence, row in zip(step.decodes, order, strict=True):
        space.append(sequence, sequence.num_computed_tokens + _NUM_DRAFT_TOKENS - 1)
        step.drafts.append(Draft(sequence, forced[row][1:]))
    drafted = runner.forward(step)[len(order) :].unflatten(0, (len(order), _NUM_DRAFT_TOKENS - 1))
    scheduler.retire(sequences)
    return drafted, one_by_one[order]


def warm_up(
    scheduler: Scheduler,
    runner: Runner,
    sampler: Sampler,
    sources: Items[Source] = (),
) -> None:
    """Runs greedy and sampled prompts of several lengths through every part of a step; ``sources``
    are an encoder-decoder's.
    """
    room = runner.cache.size.max_model_len - _WARM_UP_OUTPUT
    lengths = [min(length, room) for length in _WARM_UP_LENGTHS][: scheduler.max_num_seqs]
    if room < 1:
        return
    ways = (
        SamplingParams(_WARM_UP_OUTPUT),
        SamplingParams(_WARM_UP_OUTPUT, temperature=0.7, seed=0),
        _EVERY_OPTION,
    )
    sequences = [
        dummy_sequence([0] * length, way) for length, way in zip(lengths, ways, strict=False)
    ]
    for sequence, source in zip(sequences, itertools.cycle(sources), strict=False):
        sequence.prompt_token_ids, sequence.num_prefill_tokens = [0], 1
        sequence.source = source
    scheduler.add(sequences)
    while scheduler.has_work:
        step = scheduler.schedule()
        logits, sampled = runner.compute(step), step.sampled
        tokens = sampler.sample(logits, sampled) if sampled else []
        for sequence, token in zip(sampled, tokens, strict=True):
            sequence.append(Token(max(token.id, 0)), frozenset())
        finished = [sequence for sequence in sampled if sequence.finish_reason]
        for sequence in finished:
            sampler.forget(sequence)
        scheduler.retire(finished)
