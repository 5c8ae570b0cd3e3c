"""Positions for modules that count them from the length of the cache: one number for a whole batch,
which in-flight rows don't share.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_ASKED, _COUNTED_FROM = "position_ids", "past_key_values_length"


class CountedPositions:
    """Gives each forward's positions to the modules of a model that takes none itself (BART's and
    its kin's embeddings).
    """

    def __init__(self, model: Any) -> None:
        takes_them = _ASKED in inspect.signature(model.forward).parameters
        self._modules = [] if takes_them else [one for one in model.modules() if _counts(one)]

    @contextmanager
    def given(self, positions: torch.Tensor) -> Iterator[None]:
        """``positions`` of any shape; the modules give (*shape, size) for them."""

        def give(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, _ASKED: positions.flatten()}

        def shape(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            return output.reshape(*positions.shape, -1)

        with ExitStack() as stack:
            for module in self._modules:
                before = module.register_forward_pre_hook(give, with_kwargs=True)
                stack.callback(before.remove)
                stack.callback(module.register_forward_hook(shape).remove)
            yield


def _counts(module: Any) -> bool:
    return {_ASKED, _COUNTED_FROM} <= inspect.signature(module.forward).parameters.keys()
