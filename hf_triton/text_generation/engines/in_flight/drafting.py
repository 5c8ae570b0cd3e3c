"""Makes what drafts for an engine, as its options ask, and tries whether the runner computes drafts
as it computes the same tokens one by one.
"""

from __future__ import annotations

import torch

from hf_triton.runtime import log
from hf_triton.runtime.devices.device import total_bytes
from hf_triton.text_generation.engine.engine import EngineSetup
from hf_triton.text_generation.engine.own_logits import difference
from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.engine.step import Draft
from hf_triton.text_generation.engine.step_times import StepTimes
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.memory.kv_cache_manager import KVCacheManager
from hf_triton.text_generation.sampling.drafter import Drafter
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence

from .step_tokens import max_num_batched_tokens
from .trial import EXACT, WIDEST, logits_after
from .warm_up import dummy_sequence

# Rows of logits in a step, for a sequence that a model serves at once, and at least. A GPU's memory
# is planned for one.
_ROWS = {"cpu": 4, "cuda": 1}
_FEWEST_ROWS = 32
_LENGTHS = (5, 3)  # of the trial's prompts
_FORCED = 3  # tokens that follow


def make_drafter(
    setup: EngineSetup, runner: Runner, max_num_seqs: int, step_times: StepTimes
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
        options.prompt_lookup_min,
        options.prompt_lookup_max,
        step_times,
        options.num_speculative_tokens,
        num_rows,
    )


def computes_drafts(
    scheduler: Scheduler, space: KVCacheManager, runner: Runner, vocab_size: int
) -> bool:
    """Tries two sequences with drafts; the log says by how much logits differ where they do.
    ``scheduler`` and ``space`` are empty, before and after.
    """
    longest = runner.cache.size.max_model_len - _FORCED - 1
    lengths = [length for length in _LENGTHS if length <= longest][: scheduler.max_num_seqs]
    if not lengths:
        return False
    logits = _logits(scheduler, space, runner, lengths, vocab_size)
    found = difference(*logits)
    if found <= (EXACT if logits[0].dtype == torch.float32 else WIDEST):
        return True
    log.info(f"nothing is drafted: logits of drafts differ by {found:.2g} of their range")
    return False


def _logits(
    scheduler: Scheduler, space: KVCacheManager, runner: Runner, lengths: list[int], vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sequences, tokens, vocab) as drafts, and one by one."""
    random = torch.Generator().manual_seed(0)
    forced = torch.randint(0, vocab_size, (len(lengths), _FORCED), generator=random).tolist()
    alone = logits_after(_sequences(lengths), forced, scheduler, runner)[:, 2:]
    sequences = _sequences(lengths)
    scheduler.add(sequences)
    while not all(sequence.token_ids for sequence in sequences):
        step = scheduler.schedule()
        runner.compute(step)
        for sequence in step.sampled:
            sequence.token_ids = [forced[sequences.index(sequence)][0]]
    step = scheduler.schedule()
    order = [sequences.index(sequence) for sequence in step.decodes]
    for sequence, row in zip(step.decodes, order, strict=True):
        space.append(sequence, sequence.num_computed_tokens + _FORCED - 1)
        step.drafts.append(Draft(sequence, forced[row][1:]))
    drafted = runner.forward(step)[len(order) :].unflatten(0, (len(order), _FORCED - 1))
    scheduler.retire(sequences)
    return drafted, alone[order]


def _sequences(lengths: list[int]) -> list[Sequence]:
    params = SamplingParams(_FORCED + 1)
    return [dummy_sequence(list(range(length)), params) for length in lengths]
