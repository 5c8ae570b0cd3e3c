"""How many tokens a step computes at most, where nothing says it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..options import Options

_ON_CPU = 512
# By a GPU's memory: a longer step reads the weights for more tokens, and has larger activations.
_ON_GPU = ((70, 8192), (40, 4096), (0, 2048))  # (GiB at least, tokens)
_GIB = 2**30


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
