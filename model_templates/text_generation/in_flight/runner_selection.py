"""Selects the in-flight engine's runner for a model, by trying each.

No list of architectures: each runner computes a short trial run (prompts of different lengths, one
of them in chunks, joining while another decodes) and its logits are compared with the model's own
forward over the same tokens. The first runner whose logits agree is taken. They are tried in the
order of their speed: fused, packed, cache; where the cache is to be in pages: fused (on a GPU),
paged, cache. Layers that keep states or an indexer's keys run on the cache runner alone.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from hf_runtime import log
from hf_runtime.errors import RuntimeModelError, reason

from ..engine.scheduler import Scheduler
from ..engine.step import Step
from ..fused.attention_rules import UnsupportedDecoderError
from ..gpu.backends import AttentionCase, RecordingAttention, select_attention
from ..gpu.runner import GpuFusedRunner
from ..kv.kv_cache import CacheSize, KVCache
from ..kv.layer_shapes import LayerShape, cache_argument, own_cache
from ..kv.paged_cache import PagedCache, PagedSize
from ..kv.pages import Pages, num_pages_of
from ..paged.attention import Attend
from ..paged.plain_attention import plain_attention
from ..paged.runner import PagedRunner
from ..runners.cache_runner import CacheRunner, LocalAttentionRunner, WholePromptRunner
from ..runners.experts import choose_experts
from ..runners.packed_attention import CHUNKED
from ..runners.packed_runner import PackedRunner
from ..sequence.sampling_params import SamplingParams
from .warm_up import dummy_sequence

# The largest difference of logits, as a share of their range. Runners sum in another order than the
# model, so results differ by rounding: bfloat16 keeps 8 bits of a number, float16 11, float32 24. A
# wrong mask or position changes logits by more than that.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 8e-2}
_WIDEST = 8e-2
_TRIAL_LEN = 32
_TRIAL_WIDTH = 4
_WIDTHS = ("sliding_window", "attention_chunk_size", "floor_scale")


class Runner(Protocol):
    """What the engine needs of a runner."""

    name: str

    def forward(self, step: Step) -> torch.Tensor:
        """Computes a step -> logits (num_sampled, vocab) in the order of ``step.sampled``."""


# From a model, a cache (of pages, where it has a true attribute ``keeps_pages``) and a device.
# Where its attribute ``cuts_prompts`` is false, steps compute whole prompts.
RunnerFactory = Callable[[Any, Any, torch.device], Runner]


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
    candidates: list[RunnerFactory] = [CacheRunner]
    is_plain = all(shape.is_plain for shape in shapes)
    is_packed = is_plain and getattr(model, "_supports_attention_backend", False)
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if is_packed and (CHUNKED in kinds or not in_pages):
        candidates.insert(0, PackedRunner)
    has_states = any(shape.states for shape in shapes)
    if has_states:
        candidates.append(WholePromptRunner)
    if "local" in (getattr(model.config, "attention_layers", None) or ()):
        candidates = [LocalAttentionRunner]
    with _narrow_windows(model):
        trial = _TrialRun(model, device)
        expected = trial.decoded() if has_states else trial.expected()
        may_be_fused = is_plain and device.type == "cpu" and not in_pages
        if may_be_fused and _fits_fused(model, shapes, device, expected):
            return fused_runner
        if is_packed and in_pages:
            candidates[:0] = _page_runners(model, shapes, device)
        return _first_matching(candidates, model, shapes, device, expected)


@dataclass(frozen=True)
class _InPages:
    """Makes runners over pages that attend in one way."""

    runner: type[PagedRunner] | type[GpuFusedRunner]
    attend: Attend

    keeps_pages = True

    @property
    def __name__(self) -> str:
        return self.runner.__name__

    def __call__(self, model: Any, cache: PagedCache, device: torch.device) -> Runner:
        return self.runner(model, cache, device, self.attend)


def _page_runners(
    model: Any, shapes: list[LayerShape], device: torch.device
) -> list[RunnerFactory]:
    """Runners over pages, the fastest first, with the fastest attention that can be had."""
    attend = select_attention(lambda: _attention_cases(model, shapes, device), device)
    if attend is plain_attention:
        return [PagedRunner]
    return [_InPages(GpuFusedRunner, attend), _InPages(PagedRunner, attend)]


def _attention_cases(
    model: Any, shapes: list[LayerShape], device: torch.device
) -> set[AttentionCase]:
    """How the model's layers attend, which a trial run over pages shows."""
    recording = RecordingAttention()
    own_attention = model.config._attn_implementation  # noqa: SLF001
    with suppress(Exception):  # whatever it raises, it does so again when the runner is tried
        _logits(_InPages(PagedRunner, recording), model, shapes, device)
    model.set_attn_implementation(own_attention)
    return recording.cases


def fused_runner(model: Any, cache: KVCache, device: torch.device) -> Runner:
    """The fastest runner on a CPU.

    Raises:
        ImportError: Numba is not installed.
        UnsupportedDecoderError: the model is not of Llama's shape.
    """
    from ..fused.runner import FusedRunner

    return FusedRunner(model, cache, device)


def _fits_fused(
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    expected: dict[tuple[int, int], torch.Tensor],
) -> bool:
    """Whether the fused runner's logits agree with the model's. Where it fails, for whatever
    reason, the next runner is tried.
    """
    try:
        error = _difference(fused_runner, model, shapes, device, expected)
    except ImportError as missing:
        log.info(f"models of Llama's shape are slower on this CPU without Numba: {missing}")
        return False
    except UnsupportedDecoderError:
        return False
    except Exception as failure:
        # Whatever fails here, the other runners support more models.
        log.info(f"the compiled loops don't run: {type(failure).__name__}: {reason(failure, 120)}")
        return False
    return error <= _tolerance(model)


def _tolerance(model: Any) -> float:
    """The largest difference of logits that rounding makes, as a share of their range. A quantized
    layer may round its input to 8 bits: where the last bit of a sum differs, it may round to the
    next of 256 values.
    """
    is_quantized = getattr(model, "hf_quantizer", None) is not None
    return _WIDEST if is_quantized else _TOLERANCE.get(model.dtype, _WIDEST)


def _first_matching(
    candidates: list[RunnerFactory],
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    expected: dict[tuple[int, int], torch.Tensor],
) -> RunnerFactory:
    own_attention = model.config._attn_implementation  # noqa: SLF001
    reasons = []
    for candidate in candidates:
        try:
            error = _difference(candidate, model, shapes, device, expected)
        except Exception as failure:
            # Whatever an unknown architecture raises: this runner does not support it.
            reasons.append(
                f"{candidate.__name__}: {type(failure).__name__}: {reason(failure, 120)}"
            )
        else:
            if error <= _tolerance(model):
                return candidate
            reasons.append(f"{candidate.__name__}: its logits differ by {error:.2g} of their range")
        model.set_attn_implementation(own_attention)
    raise UnsupportedModelError("; ".join(reasons))


@contextmanager
def _narrow_windows(model: Any) -> Iterator[None]:
    """Narrows sliding windows, attention chunks and steps of temperature to fewer tokens than the
    trial run has:
    otherwise it would not show whether a runner respects them.
    """
    configs = [getattr(module, "config", None) for module in model.modules()]
    owners = {id(owner): owner for owner in (*model.modules(), *configs)}
    widths = [
        (owner, name, width)
        for owner in owners.values()
        for name in _WIDTHS
        if isinstance(width := getattr(owner, name, None), int) and width > _TRIAL_WIDTH
    ]
    for owner, name, _ in widths:
        setattr(owner, name, _TRIAL_WIDTH)
    try:
        yield
    finally:
        for owner, name, width in widths:
            setattr(owner, name, width)


class _TrialRun:
    """Three prompts of 7, 4 and 18 tokens, more than a page, and two more tokens for each."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.device = model, device
        vocab_size = int(model.config.get_text_config().vocab_size)
        numbers = torch.randint(0, vocab_size, (3, 20), generator=torch.Generator().manual_seed(0))
        lengths = (7, 4, 18)
        self.prompts = [numbers[row, :length].tolist() for row, length in enumerate(lengths)]
        self.forced = [
            numbers[row, length : length + 2].tolist() for row, length in enumerate(lengths)
        ]

    @torch.inference_mode()
    def expected(self) -> dict[tuple[int, int], torch.Tensor]:
        """(prompt, number of forced tokens) -> logits (vocab,), from whole forwards without any
        cache.
        """
        logits = {}
        for row, (prompt, forced) in enumerate(zip(self.prompts, self.forced, strict=True)):
            tokens = torch.tensor([prompt + forced], device=self.device)
            output = self.model(input_ids=tokens, use_cache=False).logits[0]
            for num_forced in range(len(forced) + 1):
                logits[row, num_forced] = output[len(prompt) - 1 + num_forced].float()
        return logits

    @torch.inference_mode()
    def decoded(self) -> dict[tuple[int, int], torch.Tensor]:
        """The same as ``generate`` computes them, over transformers' own cache: with some states a
        decoded token is not computed as in a whole forward (Zamba 2 limits time steps in one).
        """
        logits = {}
        accepted = inspect.signature(self.model.forward).parameters
        for row, (prompt, forced) in enumerate(zip(self.prompts, self.forced, strict=True)):
            cache, num_past = own_cache(self.model), 0
            for num_forced, tokens in enumerate([prompt, *([token] for token in forced)]):
                end = num_past + len(tokens)
                inputs = {
                    "input_ids": torch.tensor([tokens], device=self.device),
                    "position_ids": torch.arange(num_past, end, device=self.device).unsqueeze(0),
                    cache_argument(self.model): cache,
                }
                named = {name: value for name, value in inputs.items() if name in accepted}
                output = self.model(**named, use_cache=True).logits[0, -1]
                logits[row, num_forced], num_past = output.float(), end
        return logits

    def run(self, runner: Runner) -> dict[tuple[int, int], torch.Tensor]:
        """The same logits as the engine computes them: prompts join while others decode, at most
        five tokens a step.
        """
        params = SamplingParams(max_tokens=3)
        sequences = [dummy_sequence(prompt, params) for prompt in self.prompts]
        cache = runner.cache  # type: ignore[attr-defined]
        in_pages = isinstance(cache, PagedCache)
        space = Pages(cache.size.num_pages, shares=False) if in_pages else None
        cuts_prompts = getattr(runner, "cuts_prompts", True)
        scheduler = Scheduler(len(sequences), 5, space, cuts_prompts=cuts_prompts)
        scheduler.add(sequences)
        logits = {}
        while scheduler.has_work:
            step = scheduler.schedule()
            for sequence, row_logits in zip(step.sampled, runner.forward(step), strict=True):
                row, num_forced = sequences.index(sequence), len(sequence.token_ids)
                logits[row, num_forced] = row_logits.float()
                sequence.token_ids += self.forced[row][num_forced : num_forced + 1]
            done = [s for s in step.sampled if (sequences.index(s), 2) in logits]
            runner.cache.copy_slots(scheduler.retire(done))  # type: ignore[attr-defined]
        return logits


def _difference(
    factory: RunnerFactory,
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    expected: dict[tuple[int, int], torch.Tensor],
) -> float:
    """Largest difference of a runner's logits from the expected ones, as a share of their range."""
    got = _logits(factory, model, shapes, device)
    worst = 0.0
    for key, logits in expected.items():
        span = (logits.max() - logits.min()).clamp_min(1e-6)
        difference = float(((got[key] - logits).abs().max() / span).item())
        worst = max(worst, float("inf") if difference != difference else difference)
    return worst


def _logits(
    factory: RunnerFactory, model: Any, shapes: list[LayerShape], device: torch.device
) -> dict[tuple[int, int], torch.Tensor]:
    """The trial run's, over a cache of its own."""
    cache: KVCache | PagedCache
    if getattr(factory, "keeps_pages", False):
        num_pages = 3 * (num_pages_of(_TRIAL_LEN) + 1) + 1  # none is preempted
        cache = PagedCache(shapes, PagedSize(num_pages, _TRIAL_LEN, max_num_seqs=3, num_bytes=0))
    else:
        cache = KVCache(shapes, CacheSize(num_slots=3, max_model_len=_TRIAL_LEN, num_bytes=0))
        for state in itertools.chain(*cache.states):
            state.fill_(1)  # what other sequences left
    return _TrialRun(model, device).run(factory(model, cache, device))
