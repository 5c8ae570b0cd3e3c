"""How many tokens a step computes at most, and how many of a prompt whose log-probabilities are
wanted; reads those.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from hf_triton.text_generation.engine.step import Step
from hf_triton.text_generation.options import Options
from hf_triton.text_generation.sampling.token_logprobs import prompt_logprobs
from hf_triton.text_generation.sequence.sequence import Sequence

_ON_CPU = 512
# By a GPU's memory: a longer step reads the weights for more tokens, and has larger activations.
_ON_GPU = ((70, 8192), (40, 4096), (0, 2048))  # (GiB at least, tokens)
_GIB = 2**30
# The logits of a step's prompts, where all are wanted: 128 MiB in float32.
_MOST_LOGITS = 2**25


def max_num_batched_tokens(
    options: Options,
    device: torch.device,
    total_bytes: Callable[[torch.device], int],
    max_num_seqs: int,
) -> int:
    """The option, else 512 on a CPU and 2,048 to 8,192 on a GPU; each running sequence has one at
    least.
    """
    if options.max_num_batched_tokens is not None:
        return options.max_num_batched_tokens
    number = _ON_CPU
    if device.type == "cuda":
        gib = total_bytes(device) / _GIB
        number = next(number for least, number in _ON_GPU if gib >= least)
    return max(number, max_num_seqs)


def max_num_scored(vocab_size: int) -> int:
    """How many tokens of prompts a step may have rows of logits for."""
    return max(1, _MOST_LOGITS // vocab_size)


def read_prompt_logprobs(step: Step, logits: torch.Tensor) -> tuple[list[Sequence], list[Sequence]]:
    """Gives the step's sequences what it ``scored`` of their prompts; returns those that have all,
    and those whose scores are no numbers. logits (rows, vocab) are those after ``step.rows``. Waits
    for the device.
    """
    first, complete, doubted = 0, [], []
    for chunk in step.prefills:
        positions, sequence = chunk.scored, chunk.sequence
        token_ids = sequence.prompt_token_ids[positions.start + 1 : positions.stop + 1]
        rows = logits[first : first + len(positions)]
        first += len(positions)
        if positions:
            num = sequence.params.num_prompt_logprobs or 0
            found = prompt_logprobs(rows, token_ids, num)
            if any(math.isnan(one.logprob) for one in found):
                doubted.append(sequence)
                continue
            sequence.prompt_logprobs += found
            if not sequence.lacks_prompt_logprobs:
                complete.append(sequence)
    return complete, doubted
