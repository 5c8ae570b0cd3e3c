"""A call of the method by which a model computes features, as its forward makes it, and the same
call for images and sounds of other prompts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..sequence.source import Source
from .digests import items_of
from .outputs import lean, split, tensors_of


@dataclass(frozen=True)
class Item:
    """An image or a sound, or those of a prompt that can't be told apart: what an encoder is given
    of it, and the ``key`` of what it computes.
    """

    key: object
    inputs: dict[str, torch.Tensor]

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """But for the first axis, on which items are put together."""
        return {name: value.shape[1:] for name, value in self.inputs.items()}

    @property
    def num_numbers(self) -> int:
        return sum(value.numel() for value in self.inputs.values())


def group_of(items: list[Item], max_numbers: int) -> list[Item]:
    """The first, and those that an encoder may be given with it: at most ``max_numbers``."""
    first, *rest = items
    group, left = [first], max_numbers - first.num_numbers
    for item in rest:
        if item.shapes == first.shapes and item.num_numbers <= left:
            group.append(item)
            left -= item.num_numbers
    return group


class EncoderCall:
    """Of the method ``compute``; ``name`` is its own among a prompt's."""

    def __init__(
        self, compute: Callable[..., Any], name: object, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        self._compute, self.name, self._args, self._kwargs = compute, name, args, kwargs
        self._given: dict[str, Any] = {}
        signature = inspect.signature(compute)
        for parameter, value in signature.bind(*args, **kwargs).arguments.items():
            is_more = signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD
            self._given.update(value if is_more else {parameter: value})
        self._tensors = {
            name: value for name, value in self._given.items() if isinstance(value, torch.Tensor)
        }

    def is_of(self, source: Source) -> bool:
        """Whether it is given a prompt's own tensors, and no others."""
        others = [value for name, value in self._given.items() if name not in self._tensors]
        return (
            bool(self._tensors)
            and not any(tensors_of(others))
            and all(
                getattr(source.inputs.get(name), "shape", None) == value.shape
                for name, value in self._tensors.items()
            )
        )

    def items(self, source: Source) -> list[Item]:
        """A prompt's; none where it lacks what this call is given."""
        inputs = {name: source.inputs.get(name) for name in self._tensors}
        given = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        if len(given) < len(inputs):
            return []
        parts = items_of(given, len(source.digests))
        if parts is None:
            return [Item((self.name, source.digests), given)]
        pairs = zip(source.digests, parts, strict=True)
        return [Item((self.name, digest), part) for digest, part in pairs]

    def whole(self) -> Any:
        """What the model's forward asked for."""
        return self._compute(*self._args, **self._kwargs)

    def run(self, items: list[Item]) -> list[Any]:
        """What it computes of each item, all in one call."""
        inputs, rows = {}, []
        for name, like in self._tensors.items():
            parts = [item.inputs[name] for item in items]
            inputs[name] = torch.cat(parts).to(like.device, like.dtype)
            rows.append([len(part) for part in parts])
        found = lean(self._compute(**{**self._given, **inputs}))
        return [found] if len(items) == 1 else split(found, rows)
