"""Makes what drafts for an engine, as its options ask.

A draft model is held like any other, in slots: an eighth of the free memory on a CPU, at most, and
a quarter on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import total_bytes
from hf_triton.runtime.errors import LoadError, reason
from hf_triton.runtime.fused.reading.rotary import stable_length
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.forward.transformers.attention_interface import (
    use_attention_interface,
)
from hf_triton.text_generation.forward.transformers.runner import Runner, RunnerFactory
from hf_triton.text_generation.memory.kv_cache import CacheSize, KVCache, context_length, plan_size
from hf_triton.text_generation.memory.layer_shapes import LayerShape, keep_states, layer_shapes
from hf_triton.text_generation.sampling.speculative.drafter import Drafter, Proposer
from hf_triton.text_generation.sampling.speculative.model_proposer import ModelProposer
from hf_triton.text_generation.sampling.speculative.ngram_proposer import NgramProposer

from .rotary import settle_rotary
from .runner_selection import UnsupportedModelError, select_runner
from .step_tokens import max_num_batched_tokens
from .warm_up import dummy_sequence

# Rows of logits in a step, for a sequence that a model serves at once, and at least. A GPU's memory
# is planned for one.
_ROWS = {"cpu": 4, "cuda": 1}
_FEWEST_ROWS = 32
_MOST_DRAFTING = 32  # sequences: of more, a draft model seldom pays
_SHARE_OF_FREE = 4


@dataclass(frozen=True)
class DraftPlan:
    """How a draft model is held."""

    model: Any
    shapes: list[LayerShape]
    size: CacheSize
    make_runner: RunnerFactory


def plan_draft(setup: EngineSetup) -> DraftPlan | None:
    """None without a draft model.

    Raises:
        LoadError: it can't be held, or its cache does not fit.
    """
    if setup.draft_model is None:
        return None
    model, options, device = setup.draft_model, setup.options, setup.device
    use_attention_interface(model)
    try:
        shapes = layer_shapes(model, device)
        if keep_states(shapes):
            raise UnsupportedModelError("its states can't take tokens back")
        make_runner = select_runner(model, shapes, device)
    except Exception as error:  # whatever an unknown architecture raises
        raise LoadError(f"draft_model: it can't draft: {reason(error)}") from error
    config = model.config.get_text_config()
    limits = (context_length(config), stable_length(config), options.max_model_len)
    size = plan_size(
        shapes,
        model_limit=None,
        max_model_len=min((limit for limit in limits if limit), default=None),
        max_num_seqs=None,
        kv_cache_gib=None,
        free_bytes=setup.free_bytes(device) // _SHARE_OF_FREE,
    )
    num_slots = min(size.num_slots, _MOST_DRAFTING, options.max_num_seqs or _MOST_DRAFTING)
    num_bytes = size.num_bytes // size.num_slots * num_slots
    settle_rotary(model, size.max_model_len)
    setup.prepare(model)
    return DraftPlan(
        model, shapes, replace(size, num_slots=num_slots, num_bytes=num_bytes), make_runner
    )


def beside_draft(setup: EngineSetup, draft: DraftPlan | None) -> EngineSetup:
    """What is left to the model itself."""
    if draft is None:
        return setup
    free_bytes, num_bytes = setup.free_bytes, draft.size.num_bytes
    return replace(setup, free_bytes=lambda device: max(0, free_bytes(device) - num_bytes))


def make_drafter(
    setup: EngineSetup,
    draft: DraftPlan | None,
    runner: Runner,
    max_num_seqs: int,
    *,
    async_scheduling: bool,
) -> Drafter | None:
    """None where nothing is asked for, or the runner can't compute drafts; the log says so."""
    options = setup.options
    if draft is None and options.speculative_method in (None, "off"):
        return None
    if not runner.supports_drafts:
        log.info(f"nothing is drafted: the {runner.name} runner can't take tokens back")
        return None
    proposer: Proposer = NgramProposer(options.prompt_lookup_min, options.prompt_lookup_max)
    if draft is not None:
        proposer = _model_proposer(setup, draft, max_num_seqs)
    num_tokens = max_num_batched_tokens(options, setup.device, total_bytes, max_num_seqs)
    num_rows = min(num_tokens, max(_ROWS[setup.device.type] * max_num_seqs, _FEWEST_ROWS))
    return Drafter(
        proposer, options.num_speculative_tokens, num_rows, async_scheduling=async_scheduling
    )


def _model_proposer(setup: EngineSetup, draft: DraftPlan, max_num_seqs: int) -> ModelProposer:
    runner = draft.make_runner(draft.model, KVCache(draft.shapes, draft.size), setup.device)
    return ModelProposer(
        runner,
        draft.model,
        dummy_sequence,
        int(setup.model.config.get_text_config().vocab_size),
        max_num_batched_tokens(setup.options, setup.device, total_bytes, max_num_seqs),
    )
