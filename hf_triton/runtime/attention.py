"""The attention function that models are given in place of their own (transformers'
``AttentionInterface``): registered once, it calls what the forward at hand attends by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

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
    """Makes the function call ``attend``. One engine thread a process: no lock."""
    _current.append(attend)
    try:
        yield
    finally:
        _current.pop()


class OwnAttention:
    """How a model attends when this is made, each of its parts by its own configuration."""

    def __init__(self, model: Any) -> None:
        configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        found = {id(one): one for one in configs if hasattr(one, "_attn_implementation")}
        self._names = [(one, one._attn_implementation) for one in found.values()]  # noqa: SLF001

    def replace(self, name: str) -> None:
        """Makes all parts attend by the function of this name, whatever they were made with:
        ``set_attn_implementation`` refuses some.
        """
        _set((config, name) for config, _ in self._names)

    def restore(self) -> None:
        _set(self._names)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """For a while."""
        now = [(config, config._attn_implementation) for config, _ in self._names]  # noqa: SLF001
        self.restore()
        try:
            yield
        finally:
            _set(now)


def _set(names: Iterable[tuple[Any, str]]) -> None:
    """Gives each configuration the name of how its part attends."""
    for config, name in names:
        config._attn_implementation_internal = name  # noqa: SLF001
