"""States that a model keeps outside of transformers' Cache: in an argument of ``forward`` (RWKV), a
cache class of its own (xLSTM), or attributes of modules (RecurrentGemma). All are of one size
whatever a sequence's length, rows first.
"""

from __future__ import annotations

import inspect
import sys
from itertools import chain
from typing import Any, Protocol

import torch

_ATTRIBUTES = ("conv1d_state", "recurrent_states")  # of modules


class OwnStates(Protocol):
    def arguments(self, states: list[torch.Tensor] | None, num_rows: int) -> dict[str, Any]:
        """What ``forward`` is given to go on from ``states`` (rows, ...) each; None: to begin."""

    def read(self, output: Any) -> list[torch.Tensor]:
        """The states after a forward, (rows, ...) each, in one order."""


def own_states(model: Any) -> OwnStates | None:
    """None where transformers' Cache holds all."""
    names = inspect.signature(model.forward).parameters
    if "state" in names:
        return _Argument()
    if "cache_params" in names and hasattr(sys.modules[type(model).__module__], "xLSTMCache"):
        return _CacheClass(model)
    if any(hasattr(module, _ATTRIBUTES[0]) for module in model.modules()):
        return _Attributes(model)
    return None


class _Argument:
    """``state``, a list of tensors (rows, size, layers)."""

    def arguments(self, states: list[torch.Tensor] | None, num_rows: int) -> dict[str, Any]:
        if states is None:
            return {"state": None}
        return {"state": [*map(_Shifted, states[:2]), *states[2:]]}

    def read(self, output: Any) -> list[torch.Tensor]:
        return [getattr(state, "stored", state) for state in output.state]


class _Shifted:
    """Hidden states of the token before, (rows, 1, size): without that axis RWKV adds those of all
    rows to each.
    """

    def __init__(self, stored: torch.Tensor) -> None:
        self.stored = stored

    def __getitem__(self, at: Any) -> torch.Tensor:
        return self.stored[at].unsqueeze(1)

    def __setitem__(self, at: Any, states: torch.Tensor) -> None:
        self.stored[at] = states


class _CacheClass:
    """``cache_params`` with a tuple of states for each layer."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kind = sys.modules[type(model).__module__].xLSTMCache

    def arguments(self, states: list[torch.Tensor] | None, num_rows: int) -> dict[str, Any]:
        model = self._model
        cache = self._kind(model.config, num_rows, dtype=model.dtype, device=model.device)
        if states is not None:
            left = iter(states)
            cache.rnn_state = {
                layer: tuple(next(left) for _ in own) for layer, own in cache.rnn_state.items()
            }
        return {"cache_params": cache}

    def read(self, output: Any) -> list[torch.Tensor]:
        return list(chain(*output.cache_params.rnn_state.values()))


class _Attributes:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._owners = [
            (module, name)
            for module in model.modules()
            for name in _ATTRIBUTES
            if hasattr(module, name)
        ]

    def arguments(self, states: list[torch.Tensor] | None, num_rows: int) -> dict[str, Any]:
        if states is None:
            model = self._model
            model._setup_cache(model.config, num_rows, model.device, model.dtype)  # noqa: SLF001
        else:
            for (module, name), state in zip(self._owners, states, strict=True):
                setattr(module, name, state)
        return {}

    def read(self, output: Any) -> list[torch.Tensor]:
        return [getattr(module, name) for module, name in self._owners]
