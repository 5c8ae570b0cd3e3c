"""Makes what drafts for an engine, as its options ask."""

from __future__ import annotations

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import total_bytes
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.sampling.speculative.drafter import Drafter
from hf_triton.text_generation.sampling.speculative.ngram_proposer import NgramProposer

from .step_tokens import max_num_batched_tokens

# Rows of logits in a step, for a sequence that a model serves at once, and at least. A GPU's memory
# is planned for one.
_ROWS = {"cpu": 4, "cuda": 1}
_FEWEST_ROWS = 32


def make_drafter(
    setup: EngineSetup, runner: Runner, max_num_seqs: int, *, async_scheduling: bool
) -> Drafter | None:
    """None where nothing is asked for, or the runner can't compute drafts; the log says so."""
    options = setup.options
    if options.speculative_method != "ngram":
        return None
    if not runner.supports_drafts:
        log.info(f"nothing is drafted: the {runner.name} runner can't take tokens back")
        return None
    num_tokens = max_num_batched_tokens(options, setup.device, total_bytes, max_num_seqs)
    num_rows = min(num_tokens, max(_ROWS[setup.device.type] * max_num_seqs, _FEWEST_ROWS))
    return Drafter(
        NgramProposer(options.prompt_lookup_min, options.prompt_lookup_max),
        options.num_speculative_tokens,
        num_rows,
        async_scheduling=async_scheduling,
    )
