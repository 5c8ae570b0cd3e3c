"""Features of images and sounds: those of an equal one are not computed again.

A call of the method by which a model computes features is made as its forward makes it, or for each
image and sound of a prompt by itself.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch

from ..sequence.source import Source
from .digests import items_of

_METHODS = ("get_image_features", "get_audio_features")
# In an output's field of this name a list of tensors has one for each item, elsewhere for each
# layer, as one of lists has.
_FEATURES = "pooler_output"
_ON_THE_WAY = ("last_hidden_state", "hidden_states", "attentions")


class FeatureCache:
    """What a model's encoders returned for contents with the same digests: at most ``max_bytes``,
    the least recently used go first. ``by_item``: each image and sound is computed and kept by
    itself; else those of a prompt together.
    """

    def __init__(self, model: Any, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes, self.num_calls = max_bytes, 0, 0
        self.by_item = False
        self._kept: OrderedDict[object, tuple[Any, int]] = OrderedDict()
        self._source: Source | None = None
        self._num_methods = 0
        for module in model.modules():
            for name in _METHODS:
                if callable(own := getattr(module, name, None)):
                    setattr(module, name, self._kept_or(own, name))

    @contextmanager
    def of(self, source: Source) -> Iterator[None]:
        """The model begins this prompt meanwhile."""
        self._source, self._num_methods = source if source.digests else None, 0
        try:
            yield
        finally:
            self._source = None
            while self.num_bytes > self.max_bytes:
                _, (_, gone) = self._kept.popitem(last=False)
                self.num_bytes -= gone

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
            call = _EncoderCall(compute, args, kwargs)
            self._source = None  # the method may call itself on a part of the model
            try:
                return self._found(call, source, (name, self._num_methods))
            finally:
                self._source = source

        return features

    def _found(self, call: _EncoderCall, source: Source, method: object) -> Any:
        items = call.items(source) if self.by_item else None
        if items is None:
            key = (method, source.digests, "whole")
            return copy.copy(self._get(key, call.whole))
        outputs = []
        for digest, item in zip(source.digests, items, strict=True):
            outputs.append(self._get((method, digest), partial(call.run, item)))
        return _joined(outputs)

    def _get(self, key: object, compute: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self.num_calls += 1
            found = compute()
            size = sum(tensor.nbytes for tensor in tensors_of(found))
            self._kept[key] = found, size
            self.num_bytes += size
        self._kept.move_to_end(key)
        return self._kept[key][0]


class _EncoderCall:
    """A call of a method that computes features."""

    def __init__(self, compute: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> None:
        self._compute, self._args, self._kwargs = compute, args, kwargs
        self._given: dict[str, Any] = {}
        signature = inspect.signature(compute)
        for parameter, value in signature.bind(*args, **kwargs).arguments.items():
            is_more = signature.parameters[parameter].kind is inspect.Parameter.VAR_KEYWORD
            self._given.update(value if is_more else {parameter: value})
        self._tensors = {
            name: value for name, value in self._given.items() if isinstance(value, torch.Tensor)
        }

    def items(self, source: Source) -> list[dict[str, torch.Tensor]] | None:
        """What it is given of each image or sound; None where it is given other tensors than the
        prompt's own, or these can't be told apart.
        """
        others = [value for name, value in self._given.items() if name not in self._tensors]
        is_own = all(
            getattr(source.inputs.get(name), "shape", None) == value.shape
            for name, value in self._tensors.items()
        )
        if not self._tensors or not is_own or any(tensors_of(others)):
            return None
        given = {name: source.inputs[name] for name in self._tensors}
        return items_of(given, len(source.digests))

    def whole(self) -> Any:
        """What the model's forward asked for."""
        return self._compute(*self._args, **self._kwargs)

    def run(self, item: dict[str, torch.Tensor]) -> Any:
        """What it computes of one image or sound, without the states that features are made of."""
        inputs = {name: item[name].to(like) for name, like in self._tensors.items()}
        found = self._compute(**{**self._given, **inputs})
        if not isinstance(found, dict) or found.get(_FEATURES) is None:
            return found
        return type(found)(**{n: value for n, value in found.items() if n not in _ON_THE_WAY})


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)


def _joined(outputs: list[Any]) -> Any:
    """The output of several items in their order, given that of each."""
    first = outputs[0]
    if len(outputs) == 1:
        return copy.copy(first)
    if not isinstance(first, dict):
        return _together(outputs, by_item=True)
    fields = {
        name: _together([one[name] for one in outputs], by_item=name == _FEATURES) for name in first
    }
    return type(first)(**fields)


def _together(values: list[Any], *, by_item: bool) -> Any:
    first = values[0]
    if first is None or isinstance(first, torch.Tensor):
        return None if first is None else torch.cat(values)
    if not by_item or any(isinstance(layer, list | tuple) for layer in first):
        return [_together(list(layer), by_item=True) for layer in zip(*values, strict=True)]
    return [one for value in values for one in value]
