"""The attention function that replaces a model's own (transformers' ``AttentionInterface``). It is
registered once and calls the current forward's implementation.
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
    """Makes our function known; without a mask function of its name there are no masks."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, lambda *given, **more: _current[-1](*given, **more))
    return ATTENTION_NAME


@contextmanager
def attending(attend: Attend) -> Iterator[None]:
    """Makes the function call ``attend`` within the block. One engine thread a process: no lock."""
    _current.append(attend)
    try:
        yield
    finally:
        _current.pop()


class OwnAttention:
    def __init__(self, model: Any) -> None:
        configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
        found = {id(one): one for one in configs if hasattr(one, "_attn_implementation")}
        self._names = [(one, one._attn_implementation) for one in found.values()]  # noqa: SLF001

    def replace(self, name: str) -> None:
        """Sets this attention function on all parts; ``set_attn_implementation`` may refuse."""
        _set((config, name) for config, _ in self._names)

    def restore(self) -> None:
        _set(self._names)

    @contextmanager
    def restored(self) -> Iterator[None]:
        now = [(config, config._attn_implementation) for config, _ in self._names]  # noqa: SLF001
        self.restore()
        try:
            yield
        finally:
            _set(now)


def _set(names: Iterable[tuple[Any, str]]) -> None:
    for config, name in names:
        config._attn_implementation_internal = name  # noqa: SLF001
