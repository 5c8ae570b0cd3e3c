"""Selects the in-flight engine's runner for a model, by trying each.

No list of architectures: each runner computes a short trial run (prompts of different lengths, one
of them in chunks, joining while another decodes) and its logits are compared with those of the
model's own ``generate`` over the same tokens. The first runner whose logits agree is taken. They
are tried in the order of their speed: fused, packed, cache; where the cache is to be in pages:
fused (on a GPU), paged, cache. Layers that keep states are packed on a CPU by a runner of their
own, and else run on the cache runner alone, as an indexer's keys do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from hf_runtime import log
from hf_runtime.errors import RuntimeModelError, reason

from ..engine.own_logits import difference, narrowed, own_logits
from ..engine.scheduler import Scheduler
from ..engine.step import Step
from ..fused.decoder import UnsupportedDecoderError
from ..gpu.backends import AttentionCase, RecordingAttention, select_attention
from ..gpu.runner import GpuFusedRunner
from ..kv.kv_cache import CacheSize, KVCache
from ..kv.layer_shapes import LayerShape, own_cache
from ..kv.paged_cache import PagedCache, PagedSize
from ..kv.pages import Pages, num_pages_of
from ..paged.attention import Attend
from ..paged.plain_attention import plain_attention
from ..paged.runner import PagedRunner
from ..runners.cache_runner import (
    AlignedRunner,
    CacheRunner,
    OpenPromptRunner,
    RowRunner,
    WholePromptRowRunner,
    WholePromptRunner,
)
from ..runners.experts import choose_experts
from ..runners.latent_runner import LatentRunner, keeps_latents
from ..runners.packed_attention import CHUNKED
from ..runners.packed_runner import PackedCacheRunner, PackedRunner
from ..sequence.sampling_params import SamplingParams
from ..sequence.sequence import Sequence
from .warm_up import dummy_sequence

# The largest difference of logits, as a share of their range. Runners sum in another order than the
# model and some round less often, so results differ. In 16 bits it is _TIMES_NOISE what the model's
# own logits change by where half of a prompt is decoded token by token, at least _TIMES_EPS the
# type's last bit, at most _WIDEST.
_EXACT = 1e-3  # float32
_TIMES_NOISE, _TIMES_EPS, _WIDEST = 4.0, 3.0, 8e-2
_TRIAL_LEN = 32
TRIAL_WIDTH = 4
WIDTHS = ("sliding_window", "attention_chunk_size", "floor_scale", "log_scaling_n_floor")


class Runner(Protocol):
    """What the engine needs of a runner."""

    name: str

    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_rows, vocab) in the order of ``step.rows``."""


# From a model, a cache (of pages, where it has a true attribute ``keeps_pages``) and a device.
# Where its attribute ``cuts_prompts`` is false, steps compute whole prompts.
RunnerFactory = Callable[[Any, Any, torch.device], Runner]


_CACHED: tuple[RunnerFactory, ...] = (
    CacheRunner,
    WholePromptRunner,
    OpenPromptRunner,
    AlignedRunner,
    RowRunner,
    WholePromptRowRunner,
)


class UnsupportedModelError(RuntimeModelError):
    """No runner supports the model; the text says why, runner by runner."""


def select_runner(
    model: Any, shapes: list[LayerShape], device: torch.device, in_pages: bool = False
) -> RunnerFactory:
    """The first runner whose logits agree with the model's own; one that keeps keys and values
    ``in_pages`` where such a one holds the model. Leaves the model as that runner needs it.

    Raises:
        UnsupportedModelError: none does.
    """
    choose_experts(model, device)
    is_plain = all(shape.is_plain for shape in shapes)
    is_packed = is_plain and _takes_attention(model)
    candidates = [*(_packed(model, in_pages) if is_packed else ()), *_CACHED]
    if any(shape.states for shape in shapes) and device.type == "cpu":
        candidates.insert(0, state_runner)
    if "local" in (getattr(model.config, "attention_layers", None) or ()):
        # No trial is long enough to show GPT-Neo's windows, which its modules keep.
        candidates = [one for one in candidates if one not in _CACHED or one is AlignedRunner]
    if hasattr(own_cache(model), "linear_cache"):
        # MiniMax goes on from a state token by token, and rounds it each time.
        candidates = [WholePromptRunner]
    with narrowed(model, WIDTHS.__contains__, TRIAL_WIDTH):
        try:
            expected = TrialRun(model, device).expected()
        except Exception as error:
            raise UnsupportedModelError(f"its own generate fails: {reason(error)}") from error
        may_be_fused = is_plain and device.type == "cpu" and not in_pages
        if may_be_fused and _fits_fused(model, shapes, device, expected):
            return fused_runner
        if is_packed and in_pages:
            candidates[:0] = _page_runners(model, shapes, device)
        return _first_matching(candidates, model, shapes, device, expected)


def _packed(model: Any, in_pages: bool) -> list[RunnerFactory]:
    """Runners over slots that pack a model's tokens; those over pages are tried before."""
    if keeps_latents(model):
        return [LatentRunner]
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if in_pages or CHUNKED in kinds:  # what Llama 4's scale by position changes is small at first
        return [PackedCacheRunner]
    return [PackedRunner, PackedCacheRunner]


def _takes_attention(model: Any) -> bool:
    """Whether it can be given an attention function, it or its decoder. Not by
    _supports_attention_backend, which some models lack that take any.
    """
    parts = (model, model.get_decoder()) if hasattr(model, "get_decoder") else (model,)
    return any(part._can_set_attn_implementation() for part in parts)  # noqa: SLF001


@dataclass(frozen=True)
class InPages:
    """Makes runners over pages that attend in one way."""

    runner: type[PagedRunner] | type[GpuFusedRunner]
    attend: Attend

    keeps_pages = True

    @property
    def of_model(self) -> InPages:
        """The runner that runs the model itself, which attends in the same way."""
        return InPages(PagedRunner, self.attend)

    @property
    def name(self) -> str:
        return self.runner.name

    def __call__(self, model: Any, cache: PagedCache, device: torch.device) -> Runner:
        return self.runner(model, cache, device, self.attend)


def _page_runners(
    model: Any, shapes: list[LayerShape], device: torch.device
) -> list[RunnerFactory]:
    """Runners over pages, the fastest first, with the fastest attention that can be had."""
    attend = select_attention(lambda: _attention_cases(model, shapes, device), device)
    if attend is plain_attention:
        return [PagedRunner]
    return [InPages(GpuFusedRunner, attend), InPages(PagedRunner, attend)]


def _attention_cases(
    model: Any, shapes: list[LayerShape], device: torch.device
) -> set[AttentionCase]:
    """How the model's layers attend, which a trial run over pages shows."""
    recording = RecordingAttention()
    own_attention = model.config._attn_implementation  # noqa: SLF001
    with suppress(Exception):  # whatever it raises, it does so again when the runner is tried
        _logits(InPages(PagedRunner, recording), model, shapes, device)
    model.set_attn_implementation(own_attention)
    return recording.cases


def fused_runner(model: Any, cache: KVCache, device: torch.device) -> Runner:
    """The fastest runner on a CPU.

    Raises:
        ImportError: Numba is not installed.
        UnsupportedDecoderError: the model computes what the kernels do not.
    """
    from ..fused.runner import FusedRunner

    return FusedRunner(model, cache, device)


def state_runner(model: Any, cache: KVCache, device: torch.device) -> Runner:
    """The fastest runner of models with states on a CPU.

    Raises:
        ImportError: Numba is not installed.
        UnsupportedStatesError: the model's states go on in another way than it knows.
    """
    from ..states.runner import StateRunner

    return StateRunner(model, cache, device)


def _fits_fused(
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    expected: Expected,
) -> bool:
    """Whether the fused runner's logits agree with the model's. Where it fails, for whatever
    reason, the next runner is tried.
    """
    try:
        error = _difference(fused_runner, model, shapes, device, expected)
    except ImportError as missing:
        log.info(f"decoders are slower on this CPU without Numba: {missing}")
        return False
    except UnsupportedDecoderError:
        return False
    except Exception as failure:
        # Whatever fails here, the other runners support more models.
        log.info(f"the compiled loops don't run: {type(failure).__name__}: {reason(failure, 120)}")
        return False
    return error <= expected.tolerance


def _first_matching(
    candidates: list[RunnerFactory],
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    expected: Expected,
) -> RunnerFactory:
    own_attention = model.config._attn_implementation  # noqa: SLF001
    names: dict[str, dict[str, None]] = {}  # of runners, by why it is not they
    for candidate in candidates:
        try:
            error = _difference(candidate, model, shapes, device, expected)
        except Exception as failure:
            # Whatever an unknown architecture raises: this runner does not support it.
            why = f"{type(failure).__name__}: {reason(failure, 120)}"
        else:
            if error <= expected.tolerance:
                return candidate
            why = f"logits differ by {error:.2g} of their range"
        names.setdefault(why, {})[getattr(candidate, "name", candidate.__name__)] = None
        model.set_attn_implementation(own_attention)
    raise UnsupportedModelError(
        "none of the ways to compute its steps in flight gives what its own generate gives ("
        + "; ".join(f"{' and '.join(own)}: {why}" for why, own in names.items())
        + ")"
    )


@dataclass(frozen=True)
class Expected:
    """``logits`` (prompts, forced tokens + 1, vocab), float32, and how far from them a runner's may
    be, as a share of their range.
    """

    logits: torch.Tensor
    tolerance: float


class TrialRun:
    """Three prompts of 7, 4 and 18 tokens, more than a page, and two more tokens for each."""

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
        self.cuts_sources = True
        self.forced = [
            numbers[row, length : length + 2].tolist() for row, length in enumerate(lengths)
        ]

    def expected(self) -> Expected:
        """What the model's own generate computes, prompt by prompt."""
        pairs = zip(self.prompts, self.forced, strict=True)
        logits = [self.own_logits(prompt, forced) for prompt, forced in pairs]
        return Expected(torch.stack(logits), self._tolerance(logits[-1]))

    def _tolerance(self, own: torch.Tensor) -> float:
        """The largest difference that rounding makes. ``own`` (3, vocab) is of the last prompt."""

        def noise() -> float:
            prompt = self.prompts[-1]
            half = len(prompt) // 2
            decoded = self.own_logits(prompt[:half], prompt[half:] + self.forced[-1])
            return difference(decoded[-len(own) :], own)

        return tolerance(self.model, noise)

    def own_logits(self, prompt: list[int], forced: list[int]) -> torch.Tensor:
        """(forced tokens + 1, vocab) of the model's own generate."""
        tokens = torch.tensor([prompt], device=self.device)
        return own_logits(self.model, tokens, torch.ones_like(tokens), [forced])[0]

    def sequences(self) -> list[Sequence]:
        """The prompts as the engine is given them."""
        params = SamplingParams(max_tokens=3)
        return [dummy_sequence(prompt, params) for prompt in self.prompts]

    def run(self, runner: Runner) -> torch.Tensor:
        """The same logits (prompts, 3, vocab) as the engine computes them: prompts join while
        others decode, at most ``num_step_tokens`` a step.
        """
        sequences = self.sequences()
        cache = runner.cache  # type: ignore[attr-defined]
        in_pages = isinstance(cache, PagedCache)
        space = Pages(cache.size.num_pages, shares=False) if in_pages else None
        cuts_prompts = getattr(runner, "cuts_prompts", True)
        scheduler = Scheduler(
            len(sequences),
            self.num_step_tokens,
            space,
            cuts_prompts=cuts_prompts,
            cuts_sources=self.cuts_sources,
        )
        return logits_after(sequences, self.forced, scheduler, runner)


def logits_after(
    sequences: list[Sequence], forced: list[list[int]], scheduler: Scheduler, runner: Any
) -> torch.Tensor:
    """What a runner computes of sequences whose tokens are ``forced``, step by step -> (sequences,
    forced tokens + 1, vocab), float32.
    """
    scheduler.add(sequences)
    num_logits = len(forced[0]) + 1
    logits: dict[tuple[int, int], torch.Tensor] = {}
    while scheduler.has_work:
        step = scheduler.schedule()
        for sequence, row_logits in zip(step.sampled, runner.forward(step), strict=True):
            row, num_forced = sequences.index(sequence), len(sequence.token_ids)
            logits[row, num_forced] = row_logits.float()
            sequence.token_ids += forced[row][num_forced : num_forced + 1]
        done = [s for s in step.sampled if (sequences.index(s), num_logits - 1) in logits]
        runner.cache.copy_slots(scheduler.retire(done))
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
        return _WIDEST
    if model.dtype == torch.float32:
        return _EXACT
    least = _TIMES_EPS * torch.finfo(model.dtype).eps
    return min(_WIDEST, max(least, _TIMES_NOISE * noise()))


def _difference(
    factory: RunnerFactory,
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    expected: Expected,
) -> float:
    """Largest difference of a runner's logits from the expected ones, as a share of their range."""
    return difference(_logits(factory, model, shapes, device), expected.logits)


def _logits(
    factory: RunnerFactory, model: Any, shapes: list[LayerShape], device: torch.device
) -> torch.Tensor:
    return trial_logits(factory, shapes, TrialRun(model, device))


def trial_logits(factory: RunnerFactory, shapes: list[LayerShape], trial: TrialRun) -> torch.Tensor:
    """A trial run's, over a cache of its own."""
    cache: KVCache | PagedCache
    if getattr(factory, "keeps_pages", False):
        num_pages = 3 * (num_pages_of(trial.length) + 1) + 1  # none is preempted
        cache = PagedCache(shapes, PagedSize(num_pages, trial.length, max_num_seqs=3, num_bytes=0))
    else:
        cache = KVCache(shapes, CacheSize(num_slots=3, max_model_len=trial.length, num_bytes=0))
        for state in itertools.chain(*cache.states):
            state.fill_(1)  # what other sequences left
    return trial.run(factory(trial.model, cache, trial.device))
