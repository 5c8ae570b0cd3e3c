"""Features of images and sounds: those of prompts that begin together are computed together, and an
equal one is not computed again.

A call of the method by which a model computes features is made as its forward makes it, and then
again for images and sounds of other prompts.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from hf_triton.runtime.errors import EngineError

from ..sequence.source import Source
from .digests import items_of
from .outputs import joined, lean, split, tensors_of

# Numbers in an encoder's input: a GPU computes 111 images of 224 by 224 together; a core is as busy
# with one, and slower with several, which its caches don't hold.
_TOGETHER_ON_GPU, _TOGETHER_ON_CPU = 2**24, 2**18
_METHODS = ("get_image_features", "get_audio_features")


class FeatureCache:
    """What a model's encoders returned for contents with the same digests: at most ``max_bytes``,
    the least recently used go first. ``by_item``: images and sounds are kept one by one, and are
    computed with those of other prompts, at most ``max_together`` numbers in one call of an
    encoder; else those of a prompt together.
    """

    def __init__(self, model: Any, device: torch.device, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes, self.num_calls = max_bytes, 0, 0
        self.by_item, self.num_parted = False, 0
        self.max_together = _TOGETHER_ON_CPU if device.type == "cpu" else _TOGETHER_ON_GPU
        self._kept: OrderedDict[object, tuple[Any, int]] = OrderedDict()
        self._source: Source | None = None
        self._beside: Sequence[Source] = ()
        self._num_methods = 0
        for module in model.modules():
            for name in _METHODS:
                if callable(own := getattr(module, name, None)):
                    setattr(module, name, self._kept_or(own, name))

    @contextmanager
    def beside(self, sources: Sequence[Source]) -> Iterator[None]:
        """What encoders compute meanwhile of one of these prompts, they compute of all, and it is
        kept as long.
        """
        self._beside = sources
        try:
            yield
        finally:
            self._beside = ()
            self._trim()

    @contextmanager
    def of(self, source: Source) -> Iterator[None]:
        """The model begins this prompt meanwhile."""
        self._source, self._num_methods = source if source.digests else None, 0
        try:
            yield
        finally:
            self._source = None
            if not self._beside:
                self._trim()

    def num_together(self, source: Source) -> int:
        """How many prompts with as large images or sounds an encoder may be given in one call."""
        num_numbers = sum(tensor.numel() for tensor in tensors_of(source.inputs))
        return max(1, self.max_together // max(1, num_numbers))

    def clear(self) -> None:
        self._kept.clear()
        self.num_bytes = 0

    def _kept_or(self, compute: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(compute)  # generate reads the names of its arguments
        def features(*args: Any, **kwargs: Any) -> Any:
            source = self._source
            if source is None:
                return compute(*args, **kwargs)
            self._num_methods += 1
            call = EncoderCall(compute, (name, self._num_methods), args, kwargs)
            self._source = None  # the method may call itself on a part of the model
            try:
                return self._found(call, source)
            finally:
                self._source = source

        return features

    def _found(self, call: EncoderCall, source: Source) -> Any:
        if self.by_item and call.is_of(source):
            items = call.items(source)
            self._compute(call, items)
            return joined([self._get(item.key) for item in items])
        key = (call.name, source.digests, "whole")
        if key not in self._kept:
            self.num_calls += 1
            self._keep(key, call.whole())
        return copy.copy(self._get(key))

    def _compute(self, call: EncoderCall, own: list[Item]) -> None:
        """Those that are not kept, with others that will be asked for."""
        missing = self._missing(own)
        others = [item for source in self._beside for item in call.items(source)] if missing else []
        while missing:
            waiting = {**missing, **self._missing(others)}
            group = group_of(list(waiting.values()), self.max_together)
            try:
                found = call.run(group)
                if len(group) > 1 and not _are_finite(found):
                    raise EngineError("an encoder computed what is no number")
            except Exception:
                if len(group) == 1:
                    raise
                self.num_parted += 1
                # One that fails fails its own prompt alone; so do numbers that are none, which
                # an encoder may mix with others' behind a mask.
                others, group = [], group[:1]
                found = call.run(group)
            self.num_calls += 1
            for item, one in zip(group, found, strict=True):
                self._keep(item.key, one)
                missing.pop(item.key, None)

    def _missing(self, items: list[Item]) -> dict[object, Item]:
        return {item.key: item for item in items if item.key not in self._kept}

    def _get(self, key: object) -> Any:
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _keep(self, key: object, found: Any) -> None:
        size = sum(tensor.nbytes for tensor in tensors_of(found))
        self._kept[key] = found, size
        self.num_bytes += size

    def _trim(self) -> None:
        while self.num_bytes > self.max_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self.num_bytes -= gone


def _are_finite(found: Any) -> bool:
    numbers = (tensor for tensor in tensors_of(found) if tensor.is_floating_point())
    return all(bool(tensor.isfinite().all()) for tensor in numbers)


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
