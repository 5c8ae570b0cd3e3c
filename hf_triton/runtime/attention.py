"""The attention function that models are given in place of their own (transformers'
``AttentionInterface``): registered once, it calls what the forward at hand attends by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

ATTENTION_NAME = "hf_triton"
# With a module and its query (batch, heads, tokens, key_dim), key, value (batch, kv_heads, tokens,
# dim), mask and options, as transformers calls it -> (batch, tokens, heads, dim) and no weights.
Attend = Callable[..., tuple[torch.Tensor, None]]

_current: list[Attend] = []


def register() -> str:
    """Makes the function known to transformers -> its name. Without a mask function of that name
    transformers builds no masks: what each token sees is decided by what attends.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, lambda *given, **more: _current[-1](*given, **more))
    return ATTENTION_NAME


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Has the function call ``attend``. One engine thread a process: no lock."""
    _current.append(attend)
    try:
        yield
    finally:
        _current.pop()
