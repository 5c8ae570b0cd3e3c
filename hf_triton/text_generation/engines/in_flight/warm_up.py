"""Computes a few dummy sequences before a model serves, so that no caller waits for what happens
once: kernels selected by shape, memory taken from the system, modules imported.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Items

from hf_triton.text_generation.engine.scheduler import Scheduler
from hf_triton.text_generation.forward.transformers.runner import Runner
from hf_triton.text_generation.sampling.sampler import Sampler
from hf_triton.text_generation.sequence.detokenizer import Detokenizer
from hf_triton.text_generation.sequence.sampling_params import SamplingParams
from hf_triton.text_generation.sequence.sequence import Sequence, Token, Update
from hf_triton.text_generation.sequence.source import Source

_PROMPT_TOKENS = (3, 16, 64)
_OUTPUT_TOKENS = 3

_EVERY_OPTION = SamplingParams(
    _OUTPUT_TOKENS,
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
    """The recipient of a dummy sequence: it must never be given anything."""

    streams = False
    request_id = ""

    def take(self, update: Update) -> None:
        raise AssertionError("a warm-up is never published")

    def flush(self) -> None:
        raise AssertionError("a warm-up is never published")

    def fail(self, error: Exception) -> None:
        raise AssertionError("a warm-up is never published")


def dummy_sequence(prompt_token_ids: list[int], params: SamplingParams) -> Sequence:
    """A sequence without a caller, whose text is never needed."""
    return Sequence(prompt_token_ids, params, _NoRecipient(), Detokenizer(None, prompt_token_ids))


def warm_up(
    scheduler: Scheduler,
    runner: Runner,
    sampler: Sampler,
    sources: Items[Source] = (),
) -> None:
    """Runs prompts of several lengths, greedy and sampled ones, through every part of a step; with
    ``sources``, an encoder-decoder's, after the first token.
    """
    room = runner.cache.size.max_model_len - _OUTPUT_TOKENS
    lengths = [min(length, room) for length in _PROMPT_TOKENS][: scheduler.max_num_seqs]
    if room < 1:
        return
    ways = (
        SamplingParams(_OUTPUT_TOKENS),
        SamplingParams(_OUTPUT_TOKENS, temperature=0.7, seed=0),
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
