"""Selects the in-flight engine's runner for a model, by trying each.

No list of architectures: each runner computes a short trial run (prompts of different lengths, one
of them in chunks, joining while another decodes) and its logits are compared with those of the
model's own ``generate`` over the same tokens. The first runner whose logits agree is taken. They
are tried in the order of their speed: fused, packed, cache; where the cache is to be in pages:
fused (on a GPU), paged, cache. Layers that keep states are packed by runners of their own, on a CPU
over slots and on a GPU over pages; what those don't hold runs on the cache runner alone, as an
indexer's keys do.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.errors import RuntimeModelError, reason
from hf_triton.runtime.fused.parts import UnsupportedLayersError
from hf_triton.text_generation.engine.own_logits import check_numbers, difference, narrowed
from hf_triton.text_generation.forward.gpu.backends import (
    AttentionCase,
    RecordingAttention,
    select_attention,
)
from hf_triton.text_generation.forward.gpu.runner import GpuFusedRunner
from hf_triton.text_generation.forward.paged.attention import Attend
from hf_triton.text_generation.forward.paged.plain_attention import plain_attention
from hf_triton.text_generation.forward.paged.runner import PagedRunner
from hf_triton.text_generation.forward.states.paged_runner import PagedStateRunner
from hf_triton.text_generation.forward.transformers.cache_runner import (
    CacheRunner,
    WholePromptRunner,
)
from hf_triton.text_generation.forward.transformers.experts import choose_experts
from hf_triton.text_generation.forward.transformers.packed_attention import CHUNKED
from hf_triton.text_generation.forward.transformers.packed_runner import (
    PackedCacheRunner,
    PackedRunner,
)
from hf_triton.text_generation.forward.transformers.runner import Making, Runner, RunnerFactory
from hf_triton.text_generation.memory.kv_cache import KVCache
from hf_triton.text_generation.memory.layer_shapes import LayerShape, keep_states, own_cache
from hf_triton.text_generation.memory.paged_cache import PagedCache

from .trial import (
    TRIAL_WIDTH,
    WIDTHS,
    Expected,
    TrialRun,
    trial_logits,
)

_CACHED: tuple[RunnerFactory, ...] = (CacheRunner, WholePromptRunner)


class UnsupportedModelError(RuntimeModelError):
    """No runner supports the model; the text says why, runner by runner."""


def select_runner(
    model: Any, shapes: list[LayerShape], device: torch.device, in_pages: bool = False
) -> RunnerFactory:
    """The first runner whose logits agree with the model's own; one that keeps keys and values
    ``in_pages`` where such a one holds the model. Leaves the model as that runner needs it.

    Raises:
        UnsupportedModelError: none does.
        LoadError: the model's scores are no numbers.
    """
    choose_experts(model, device)
    keeps_latents = _keeps_latents(model)
    is_plain = all(shape.is_plain for shape in shapes) and not keeps_latents
    is_packed = is_plain and _takes_attention(model)
    candidates = [*(_packed(model, in_pages) if is_packed else ()), *_CACHED]
    if keep_states(shapes) and device.type == "cpu" and not keeps_latents:
        candidates.insert(0, state_runner)
    if "local" in (getattr(model.config, "attention_layers", None) or ()):
        # No trial is long enough to show GPT-Neo's windows, which its modules keep.
        candidates = [one for one in candidates if one not in _CACHED]
    if hasattr(own_cache(model), "linear_cache"):
        # MiniMax goes on from a state token by token, and rounds it each time.
        candidates = [WholePromptRunner]
    with narrowed(model, WIDTHS.__contains__, TRIAL_WIDTH):
        try:
            expected = TrialRun(model, device).expected()
        except Exception as error:
            raise UnsupportedModelError(f"its own generate fails: {reason(error)}") from error
        check_numbers(expected.logits)
        may_be_fused = is_plain and device.type == "cpu" and not in_pages
        if may_be_fused and _fits_fused(model, shapes, device, expected):
            return fused_runner
        if in_pages and (is_packed or keep_states(shapes)):
            candidates[:0] = _page_runners(model, shapes, device)
        return _first_matching(candidates, model, shapes, device, expected)


def _packed(model: Any, in_pages: bool) -> list[RunnerFactory]:
    """Runners over slots that pack a model's tokens; those over pages are tried before."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if in_pages or CHUNKED in kinds:  # what Llama 4's scale by position changes is small at first
        return [PackedCacheRunner]
    return [PackedRunner, PackedCacheRunner]


def _keeps_latents(model: Any) -> bool:
    """Whether layers make keys and values of what their cache keeps (DeepSeek V2)."""
    return any(hasattr(module, "expand_kv") for module in model.modules())


def _takes_attention(model: Any) -> bool:
    """Whether it can be given an attention function, it or its decoder. Not by
    _supports_attention_backend, which some models lack that take any.
    """
    parts = (model, model.get_decoder()) if hasattr(model, "get_decoder") else (model,)
    return any(part._can_set_attn_implementation() for part in parts)  # noqa: SLF001


@dataclass(frozen=True)
class InPages:
    """Makes runners over pages that attend in one way."""

    runner: type[PagedRunner | GpuFusedRunner]
    attend: Attend

    keeps_pages, chunked_prefill = True, True

    @property
    def of_model(self) -> InPages:
        """The runner that runs the model itself, which attends in the same way."""
        return InPages(PagedRunner, self.attend) if self.runner is GpuFusedRunner else self

    @property
    def name(self) -> str:
        return self.runner.name

    def __call__(self, model: Any, cache: PagedCache, device: torch.device) -> Runner:
        return self.runner(model, cache, device, self.attend)


def _page_runners(
    model: Any, shapes: list[LayerShape], device: torch.device
) -> list[RunnerFactory]:
    """Runners over pages, the fastest first, with the fastest attention that can be had."""
    states = keep_states(shapes)
    of_model = PagedStateRunner if states else PagedRunner
    cases = partial(_attention_cases, model, shapes, device, of_model)
    attend = select_attention(cases, device)
    if attend is plain_attention:
        return [of_model]
    fused = [] if states else [InPages(GpuFusedRunner, attend)]
    return [*fused, InPages(of_model, attend)]


def _attention_cases(
    model: Any, shapes: list[LayerShape], device: torch.device, runner: type[PagedRunner]
) -> set[AttentionCase]:
    """How the model's layers attend, which a trial run over pages shows."""
    recording = RecordingAttention()
    own_attention = model.config._attn_implementation  # noqa: SLF001
    with suppress(Exception):  # whatever it raises, it does so again when the runner is tried
        _logits(InPages(runner, recording), model, shapes, device)
    model.set_attn_implementation(own_attention)
    return recording.cases


def _fused_runner(model: Any, cache: KVCache, device: torch.device) -> Runner:
    """The fastest runner on a CPU.

    Raises:
        ImportError: Numba is not installed.
        UnsupportedLayersError: the model computes what the kernels do not.
    """
    from hf_triton.text_generation.forward.fused.runner import FusedRunner

    return FusedRunner(model, cache, device)


fused_runner = Making("fused", _fused_runner)


def _state_runner(model: Any, cache: KVCache, device: torch.device) -> Runner:
    """The fastest runner of models with states on a CPU.

    Raises:
        ImportError: Numba is not installed.
        UnsupportedStatesError: the model's states go on in another way than it knows.
    """
    from hf_triton.text_generation.forward.states.runner import StateRunner

    return StateRunner(model, cache, device)


state_runner = Making("packed, states", _state_runner)


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
    except UnsupportedLayersError:
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
                for why, own in names.items():
                    log.info(f"not run by {' and '.join(own)}: {why}")
                return candidate
            allowed = f"allowed is {expected.tolerance:.2g}"
            why = f"logits differ by {error:.2g} of their range, {allowed}"
        names.setdefault(why, {})[candidate.name] = None
        model.set_attn_implementation(own_attention)
    raise UnsupportedModelError(
        "none of the ways to compute its steps in flight gives what its own generate gives ("
        + "; ".join(f"{' and '.join(own)}: {why}" for why, own in names.items())
        + ")"
    )


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
