"""Dummy sequences, computed at load: they show whether a runner gives the logits of the model's own
``generate``, and they warm up what requests would wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from hf_triton.runtime.attention import OwnAttention
from hf_triton.runtime.trial import RunnerSpec, first_agreeing
from hf_triton.text_generation.engine.own_logits import (
    check_numbers,
    difference,
    differences,
    in_float32,
    own_logits,
)
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.forward.transformers.transformers_runner import Runner
from hf_triton.text_generation.media.processor import PLACEHOLDERS
from hf_triton.text_generation.memory.layer_shapes import LayerShape
from hf_triton.text_generation.memory.paged_cache import PagedCache
from hf_triton.text_generation.memory.pages import PAGE_SIZES, PagedSize, num_pages_of
from hf_triton.text_generation.memory.state_pages import new_space
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence
from hf_triton.text_generation.sequence.source import Source

# The largest difference of logits, as a share of their range. Runners sum in another order than the
# model and some round less often, so results differ. In 16 bits it is _TIMES_NOISE what the model's
# own logits change by where half of a prompt is decoded token by token, at least _TIMES_EPS the
# type's last bit, at most WIDEST. Where they differ by more, float32 tells which one is right: a
# runner may be _FARTHER from it than the model's own logits, in the geometric mean of rows, which
# one row where a mixture takes another expert changes little.
EXACT = 1e-3  # float32
_TIMES_NOISE, _TIMES_EPS, WIDEST = 4.0, 3.0, 8e-2
_FARTHER = 1.25
_TRIAL_LEN = 32
_NUM_STEP_TOKENS = 14
TRIAL_WIDTH = 4
WIDTHS = ("sliding_window", "attention_chunk_size", "floor_scale", "log_scaling_n_floor")

_WARM_UP_LENGTHS = (3, 16, 64)  # of prompts
_WARM_UP_OUTPUT = 3  # tokens

EVERY_OPTION = SamplingParams(
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
    num_logprobs=5,
    seed=0,
)


_NOBODY: Any = SimpleNamespace(streams=False)  # nothing of a trial is published


def dummy_sequence(
    prompt_token_ids: list[int], params: SamplingParams, source: Source | None = None
) -> Sequence:
    detokenizer = Detokenizer(None, prompt_token_ids)
    return Sequence(prompt_token_ids, params, _NOBODY, detokenizer, source=source)


class Probe(NamedTuple):
    """A prompt, the tokens that follow it whatever the logits say, and its source."""

    prompt: list[int]
    forced: list[int]
    source: Source | None = None


class Expected(NamedTuple):
    """``logits`` (probes, forced tokens + 1, vocab), float32; ``tolerance`` is a share of their
    range.
    """

    logits: torch.Tensor
    tolerance: float


@dataclass(frozen=True)
class Trial:
    """Probes that join while others decode, at most ``num_step_tokens`` a step; ``length`` tokens
    of each find room, in a cache made for ``max_model_len`` if that is more. ``encode`` makes of a
    prompt and its source what a decoder is fed with.
    """

    model: Any
    device: torch.device
    probes: list[Probe]
    num_step_tokens: int = 5
    length: int = _TRIAL_LEN
    max_model_len: int = 0
    cuts_sources: bool = True
    encode: Callable[[list[int], Source], Any] | None = None

    def expected(self) -> Expected:
        logits = [self._own_logits(probe) for probe in self.probes]
        return Expected(torch.stack(logits), self._tolerance(logits))

    def select(
        self,
        expected: Expected,
        candidates: Iterable[RunnerSpec],
        shapes: list[LayerShape],
    ) -> tuple[RunnerSpec | None, str]:
        """The first runner that gives the expected logits, or in 16 bits some that are as near to
        those of float32; None, and why, where none does. The model attends by itself again after
        each that is rejected. Raises LoadError for NaN in all.
        """
        check_numbers(expected.logits)
        own_attention = OwnAttention(self.model)

        @cache
        def exact_logits() -> torch.Tensor | None:
            """The logits in float32; None if the model is float32 itself, or has no room."""
            if self._is_rounded:
                with suppress(Exception), own_attention.restored(), in_float32(self.model):
                    return torch.stack([self._own_logits(probe) for probe in self.probes])
            return None

        def differs(spec: RunnerSpec) -> float:
            logits = self.logits(spec, shapes)
            found = difference(logits, expected.logits)
            if found <= expected.tolerance or (exact := exact_logits()) is None:
                return found
            farther = self._error(logits, exact) / self._error(expected.logits, exact)
            return expected.tolerance if farther <= _FARTHER else found

        named = ((spec.name, spec) for spec in candidates)
        give_back = own_attention.restore
        return first_agreeing(named, differs, expected.tolerance, give_back=give_back)

    def logits(self, spec: RunnerSpec, shapes: list[LayerShape]) -> torch.Tensor:
        """A runner's logits (probes, forced tokens + 1, vocab), float32, over a cache full of NaN,
        which other sequences might leave.
        """
        num, page_size = len(self.probes), PAGE_SIZES[self.device.type]
        num_pages = num * (num_pages_of(self.length, page_size) + 1) + 1  # none is preempted
        longest = max(self.length, self.max_model_len)
        size = PagedSize(num_pages, longest, num, num_bytes=0, page_size=page_size)
        cache = PagedCache(shapes, size)
        for stored in chain(cache.keys, cache.values, *cache.states):
            stored.fill_(torch.nan if stored.is_floating_point() else 1)
        runner = spec(self.model, cache, self.device)
        if self.model.config.is_encoder_decoder:  # else what is behind a source is not cleared
            cache.source_lengths = [cache.states[0][0].shape[2]] * len(cache.source_lengths)
        num_logits = len(self.probes[0].forced) + 1
        params = SamplingParams(max_tokens=num_logits)
        sequences = [dummy_sequence(one.prompt, params, one.source) for one in self.probes]
        for sequence in sequences:
            if self.encode is not None and sequence.source is not None:
                sequence.encoded = self.encode(sequence.prompt_token_ids, sequence.source)
        scheduler = Scheduler(
            num,
            self.num_step_tokens,
            new_space(shapes, size, shares=False),
            chunked_prefill=spec.chunked_prefill,
            cuts_sources=self.cuts_sources,
        )
        scheduler.add(sequences)
        logits: dict[tuple[int, int], torch.Tensor] = {}
        while scheduler.has_work:
            step = scheduler.schedule()
            for sequence, row_logits in zip(step.rows, runner.compute(step), strict=True):
                row, num_forced = sequences.index(sequence), len(sequence.token_ids)
                logits[row, num_forced] = row_logits.to(torch.float32, copy=True)
                sequence.token_ids += self.probes[row].forced[num_forced : num_forced + 1]
            done = [s for s in step.sampled if (sequences.index(s), num_logits - 1) in logits]
            scheduler.retire(done)
        return torch.stack(
            [torch.stack([logits[row, at] for at in range(num_logits)]) for row in range(num)]
        )

    def _own_logits(self, probe: Probe) -> torch.Tensor:
        prompt = torch.tensor([probe.prompt], device=self.device)
        inputs = {} if probe.source is None else probe.source.on(self.device, self.model.dtype)
        if not self.model.config.is_encoder_decoder:
            mask = torch.ones_like(prompt)
            return own_logits(self.model, [probe.forced], prompt, attention_mask=mask, **inputs)[0]
        return own_logits(self.model, [probe.forced], decoder_input_ids=prompt, **inputs)[0]

    def _tolerance(self, logits: list[torch.Tensor]) -> float:
        """The largest difference that rounding makes. A quantized layer may round its input to 8
        bits, where one last bit decides between two of 256 values.
        """
        if self._is_rounded:
            least = _TIMES_EPS * torch.finfo(self.model.dtype).eps
            return min(WIDEST, max(least, _TIMES_NOISE * self._noise(logits)))
        return EXACT if getattr(self.model, "hf_quantizer", None) is None else WIDEST

    @property
    def _is_rounded(self) -> bool:
        """True if all is computed in 16 bits."""
        is_quantized = getattr(self.model, "hf_quantizer", None) is not None
        return not is_quantized and self.model.dtype != torch.float32

    def _error(self, logits: torch.Tensor, exact: torch.Tensor) -> float:
        """The geometric mean of the rows' differences, each at least half of the last bit."""
        least = torch.finfo(self.model.dtype).eps / 2
        return float(differences(logits, exact).clamp_min(least).log().mean().exp())

    def _noise(self, logits: list[torch.Tensor]) -> float:
        """The change of a probe's logits if half of its prompt is decoded token by token; in an
        encoder-decoder, if most of its tokens are read at once.
        """
        reads_most = self.model.config.is_encoder_decoder
        prompt, forced, source = self.probes[0 if reads_most else -1]
        tokens = prompt + forced
        num_read = len(tokens) - 1 if reads_most else len(prompt) // 2
        with suppress(Exception):  # a decoder that starts with one token only
            found = self._own_logits(Probe(tokens[:num_read], tokens[num_read:], source))
            own = logits[0 if reads_most else -1]
            num = min(len(own), len(found))
            return difference(found[-num:], own[-num:])
        return 0.0


def text_trial(model: Any, device: torch.device, max_model_len: int = 0) -> Trial:
    """Prompts that are computed in chunks of 4 to 12 tokens. A short one decodes beside a long one,
    which shows masks that let a row see columns behind its own; on a CPU two decode together beyond
    a page.
    """
    probes = text_probes(model)
    return Trial(model, device, probes, _NUM_STEP_TOKENS, max_model_len=max_model_len)


def text_probes(model: Any) -> list[Probe]:
    """Prompts of 4, 18 and 17 tokens, the last two longer than a page on a CPU. Texts have no
    placeholders of images or sounds; Granite Speech takes another token's embedding for them.
    """
    config = model.config.get_text_config()
    draw = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, int(config.vocab_size), (3, 20), generator=draw)
    pad = getattr(config, "pad_token_id", None)
    if isinstance(pad, int) and 0 <= pad < config.vocab_size:
        numbers[-1, [2, 12]] = pad  # some count positions of all other tokens
    media = {getattr(model.config, name, None) for name in PLACEHOLDERS}
    texts = [[0 if token in media else token for token in row] for row in numbers.tolist()]
    rows = zip(texts, (4, 18, 17), strict=True)
    return [Probe(row[:length], row[length : length + 2]) for row, length in rows]


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
        EVERY_OPTION,
    )
    sequences = [
        dummy_sequence([0] * length, way) for length, way in zip(lengths, ways, strict=False)
    ]
    for sequence, source in zip(sequences, cycle(sources), strict=False):
        sequence.prompt_token_ids, sequence.num_prefill_tokens = [0], 1
        sequence.source = source
    scheduler.add(sequences)
    while scheduler.has_work:
        step = scheduler.schedule()
        logits, sampled = runner.compute(step), step.sampled
        token_ids = sampler.sample(logits, sampled).token_ids if sampled else []
        for sequence, token_id in zip(sampled, token_ids, strict=True):
            sequence.append(max(token_id, 0), frozenset())
        scheduler.retire([sequence for sequence in sampled if sequence.finish_reason])
