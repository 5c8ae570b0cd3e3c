"""Selects the in-flight engine's runner for a model, by trying each.

No list of architectures: each runner computes a short trial run (prompts of different lengths, one
of them in chunks, joining while another decodes), and its logits are compared with those of the
model's own ``generate``. The first that agrees is taken, tried in the order of speed: fused,
packed, cache. Layers with states have packed runners of their own: compiled on a CPU, else by
transformers' functions.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hf_triton.runtime import log
from hf_triton.runtime.attention import OwnAttention
from hf_triton.runtime.errors import RuntimeModelError, reason
from hf_triton.runtime.trial import RunnerSpec
from hf_triton.text_generation.engine.own_logits import narrowed
from hf_triton.text_generation.forward.paged.attention import CHUNKED, Attend, plain_attention
from hf_triton.text_generation.forward.paged.attention_selection import (
    AttentionCase,
    noting,
    select_attention,
)
from hf_triton.text_generation.forward.paged.page_runner import PagedRunner
from hf_triton.text_generation.forward.states.own_functions import OwnFunctions
from hf_triton.text_generation.forward.states.row import StateRunner
from hf_triton.text_generation.forward.transformers.cache_runner import CacheRunner
from hf_triton.text_generation.memory.layer_shapes import LayerShape

from .trial import TRIAL_WIDTH, WIDTHS, text_trial

CPU_EXPERTS_NAME = "hf_triton_experts_cpu"
_NUM_TRIAL_TOKENS = 9  # tokens: several of an expert
_TIMES_EPS = 32  # of the last bit of what a loop over experts may differ by


def _fused(*given: Any) -> Any:
    from hf_triton.text_generation.forward.fused.fused_runner import FusedRunner  # needs Numba

    return FusedRunner(*given)


def _states(*given: Any) -> Any:
    from hf_triton.text_generation.forward.states import compiled_functions  # needs Numba

    functions = compiled_functions.CompiledFunctions
    return StateRunner(*given, _compiled_attention(), functions=functions)


def _packed(model: Any, cache: Any, device: torch.device, **more: Any) -> Any:
    return PagedRunner(model, cache, device, _compiled_attention(), **more)


def _compiled_attention() -> Attend:
    try:
        from hf_triton.text_generation.forward.paged.compiled_attention import CompiledAttention

        return CompiledAttention()
    except (ImportError, OSError):
        return plain_attention


PACKED = RunnerSpec("packed", _packed)
PACKED_WITH_CACHE = RunnerSpec("packed", partial(_packed, gives_cache=True))
FUSED = RunnerSpec("fused", _fused, of_model=PACKED)
STATES = RunnerSpec(StateRunner.name, _states)
OWN_STATES = RunnerSpec(StateRunner.name, partial(StateRunner, functions=OwnFunctions))
CACHE = RunnerSpec("cache", CacheRunner)
# For models whose prompts' tokens all see each other (PaliGemma), or whose recurrence does not go
# on from an earlier chunk's state (transformers' scan of Mamba 1 takes none).
WHOLE_PROMPTS = RunnerSpec("cache, whole prompts", CacheRunner, chunked_prefill=False)


class UnsupportedModelError(RuntimeModelError):
    """No runner supports the model; the text says why, runner by runner."""


def select_runner(
    model: Any,
    shapes: list[LayerShape],
    device: torch.device,
    *,
    compiled: bool,
    max_model_len: int = 0,
) -> RunnerSpec:
    """The first runner whose logits agree with the model's own, one of ``compiled`` loops or of
    attention over pages on a GPU; the fused one reads layers at the last position of
    ``max_model_len``. Leaves the model as the runner needs it. Raises UnsupportedModelError where
    none agrees, LoadError for NaN logits.
    """
    if device.type == "cpu":
        choose_experts(model)
    with narrowed(model, WIDTHS.__contains__, TRIAL_WIDTH):
        try:
            trial = text_trial(model, device, max_model_len)
            expected = trial.expected()
        except Exception as error:
            raise UnsupportedModelError(f"its own generate fails: {reason(error)}") from error
        candidates = _candidates(model, shapes, device, compiled=compiled)
        found, refusals = trial.select(expected, candidates, shapes)
    if found is None:
        why = "no runner's logits in flight match its own generate's"
        raise UnsupportedModelError(f"{why} ({refusals})")
    return found


def _candidates(
    model: Any, shapes: list[LayerShape], device: torch.device, *, compiled: bool
) -> list[RunnerSpec]:
    """The runners that may hold a model, the fastest first."""
    found: list[RunnerSpec] = []
    # Layers that compute keys and values from what their cache keeps (DeepSeek V2).
    keeps_latents = any(hasattr(module, "expand_kv") for module in model.modules())
    states = {state.kind for shape in shapes for state in shape.states}
    is_plain = all(shape.num_kv_heads for shape in shapes) and not states and not keeps_latents
    if states and states <= {"conv", "recurrent"} and not keeps_latents:
        in_pages = _on_gpu(OWN_STATES, model, shapes, device)
        found += [STATES, in_pages] if compiled else [in_pages]
    if compiled and is_plain:
        found.append(FUSED)
    if is_plain and _takes_attention(model):
        found += _packed_runners(model, shapes, device, compiled=compiled)
    if "local" not in (getattr(model.config, "attention_layers", None) or ()):
        # No trial is long enough to show GPT-Neo's windows, which its modules keep.
        found += [CACHE, WHOLE_PROMPTS]
    return found


def _packed_runners(
    model: Any, shapes: list[LayerShape], device: torch.device, *, compiled: bool
) -> list[RunnerSpec]:
    both = [PACKED, PACKED_WITH_CACHE]
    if not compiled:
        plain = _on_gpu(PagedRunner, model, shapes, device)
        both = [plain, replace(plain, make=partial(plain.make, gives_cache=True))]
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    # Llama 4's scale by position changes little at the first positions.
    return both[1:] if CHUNKED in kinds else both


def _takes_attention(model: Any) -> bool:
    """True if the model or its decoder takes an attention function; _supports_attention_backend is
    missing in some that do.
    """
    parts = (model, model.get_decoder()) if hasattr(model, "get_decoder") else (model,)
    return any(part._can_set_attn_implementation() for part in parts)  # noqa: SLF001


def _on_gpu(kind: Any, model: Any, shapes: list[LayerShape], device: torch.device) -> RunnerSpec:
    attend = select_attention(partial(_attention_cases, model, shapes, device, kind), device)
    return in_pages_by(kind, attend)


def in_pages_by(kind: Any, attend: Attend) -> RunnerSpec:
    return RunnerSpec(kind.name, lambda *given, **more: kind(*given, attend, **more))


def _attention_cases(
    model: Any, shapes: list[LayerShape], device: torch.device, kind: Any
) -> set[AttentionCase]:
    """The cases of attention that the model's layers make in a trial run."""
    cases: set[AttentionCase] = set()
    own_attention = OwnAttention(model)
    with suppress(Exception):  # whatever it raises, it does so again when the runner is tried
        text_trial(model, device).logits(in_pages_by(kind, noting(cases)), shapes)
    own_attention.restore()
    return cases


def choose_experts(model: Any) -> None:
    """Makes a model on a CPU compute its experts in one loop, if that agrees with transformers' own
    grouped products, which take one call for each expert.
    """
    if getattr(model.config, "_experts_implementation", "") != "grouped_mm":
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    experts = [module for module in model.modules() if hasattr(module, "has_post_expert_norm")]
    try:
        from hf_triton.runtime.fused.experts import grouped_experts, takes

        kinds = {type(module): module for module in experts}.values()
        fits = all(map(takes, experts)) and all(_matches(each, grouped_experts) for each in kinds)
    except Exception as error:
        # After any failure transformers' own implementation serves.
        log.info(f"no loop over experts: {type(error).__name__}: {reason(error, 120)}")
        return
    if experts and fits:
        ALL_EXPERTS_FUNCTIONS.register(CPU_EXPERTS_NAME, grouped_experts)
        model.set_experts_implementation(CPU_EXPERTS_NAME)


@torch.inference_mode()
def _matches(module: Any, forward: Any) -> bool:
    weight = module.down_proj
    size = weight.shape[2] if module.is_transposed else weight.shape[1]
    chosen = torch.arange(2 * _NUM_TRIAL_TOKENS).view(_NUM_TRIAL_TOKENS, 2) % module.num_experts
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_NUM_TRIAL_TOKENS, size, generator=generator).to(weight.dtype)
    weights = torch.rand(_NUM_TRIAL_TOKENS, 2, generator=generator).to(weight.dtype)
    expected, got = module(x, chosen, weights).float(), forward(module, x, chosen, weights).float()
    tolerance = _TIMES_EPS * torch.finfo(weight.dtype).eps
    return bool((got - expected).abs().max() <= tolerance * expected.abs().max())
