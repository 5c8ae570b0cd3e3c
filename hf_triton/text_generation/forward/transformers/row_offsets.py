"""Changes a decoder that counts positions from one offset, to one for each row of a batch.

A cache that says (rows, 1) where transformers expects how many tokens came before is all that some
decoders need. Here are the two places that don't take it: embeddings of positions, and T5's bias.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OFFSET, _POSITIONS = "past_key_values_length", "position_ids"


class Change:
    """Another function in the place of a module's own, while it is made."""

    def __init__(self, module: Any, name: str) -> None:
        self._module, self._name = module, name
        self._own: Callable[..., Any] = getattr(module, name)

    @contextmanager
    def made(self) -> Iterator[None]:
        setattr(self._module, self._name, self._by_row)
        try:
            yield
        finally:
            delattr(self._module, self._name)

    def _by_row(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class BiasChange(Change):
    """T5's relative bias (1, heads, tokens, columns) becomes (rows, heads, 1, columns): given
    (rows, 1) of offsets, it computes a row's where a token's would be.
    """

    def _by_row(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs).transpose(0, 2)


class PositionsChange(Change):
    """Embeddings (rows, 1, size) of a position for each row: at once where the module looks up what
    it is given, else for each position that a row has.
    """

    def __init__(self, module: Any, name: str) -> None:
        super().__init__(module, name)
        self._signature = inspect.signature(self._own)
        self._at_once = True

    def _by_row(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind(*args, **kwargs).arguments
        offsets: torch.Tensor = given[_OFFSET]
        if self._at_once:
            try:
                return self._own(**given).reshape(len(offsets), 1, -1)
            except (RuntimeError, TypeError):
                self._at_once = False
        places = offsets[:, 0].tolist()
        found = {}
        for place in set(places):
            if given.get(_POSITIONS) is not None:
                given[_POSITIONS] = torch.tensor([place], device=offsets.device)
            embedded = self._own(**{**given, _OFFSET: place})
            found[place] = embedded.reshape(-1, 1, embedded.shape[-1]).expand(len(places), -1, -1)
        return torch.stack([found[place][row] for row, place in enumerate(places)])


def changes_by_row(decoder: Any) -> list[Change]:
    """What is to be changed of a decoder."""
    changes: list[Change] = [
        BiasChange(module, "compute_bias")
        for module in decoder.modules()
        if hasattr(module, "compute_bias")
    ]
    positions = getattr(decoder, "embed_positions", None)
    if positions is not None and _OFFSET in inspect.signature(positions.forward).parameters:
        changes.append(PositionsChange(positions, "forward"))
    return changes
