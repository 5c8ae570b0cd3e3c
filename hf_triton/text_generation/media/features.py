"""A cache of the features of images and sounds. A model's method for features is called as its
forward calls it, or for each image and sound of a prompt by itself.
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
# A list of tensors in this field of an output has one for each item. In other fields it has one
# for each layer, as has a list of lists in any.
_FEATURES = "pooler_output"
_ON_THE_WAY = ("last_hidden_state", "hidden_states", "attentions")


class FeatureCache:
    """Outputs of a model's encoders by the contents' digests; at most ``max_bytes``, of which
    the least recently used are evicted. ``by_item``: each image and sound is computed and kept by
    itself, else those of a prompt together.
    """

    def __init__(self, model: Any, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self.by_item = False
        self._entries: OrderedDict[object, tuple[Any, int]] = OrderedDict()
        self._source: Source | None = None
        self._num_methods = 0
        for module in model.modules():
            for name in _METHODS:
                if callable(own := getattr(module, name, None)):
                    setattr(module, name, self._cached(own, name))

    @contextmanager
    def of(self, source: Source) -> Iterator[None]:
        """Within it, the model computes features of this source."""
        self._source, self._num_methods = source if source.digests else None, 0
        try:
            yield
        finally:
            self._source = None
            while self.num_bytes > self.max_bytes:
                _, (_, gone) = self._entries.popitem(last=False)
                self.num_bytes -= gone

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0

    def _cached(self, compute: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(compute)  # generate reads the names of its arguments
        def features(*args: Any, **kwargs: Any) -> Any:
            source = self._source
            if source is None:
                return compute(*args, **kwargs)
            self._num_methods += 1
            method = name, self._num_methods
            given = _arguments(compute, args, kwargs)
            items = _items(given, source) if self.by_item else None
            self._source = None  # the method may call itself on a part of the model
            try:
                if items is None:
                    key = method, source.digests, "whole"
                    return copy.copy(self._get(key, partial(compute, *args, **kwargs)))
                calls = [partial(_features, compute, given, item) for item in items]
                keys = [(method, digest) for digest in source.digests]
                return _joined(list(map(self._get, keys, calls)))
            finally:
                self._source = source

        return features

    def _get(self, key: object, compute: Callable[[], Any]) -> Any:
        if key not in self._entries:
            found = compute()
            size = sum(tensor.nbytes for tensor in tensors_of(found))
            self._entries[key] = found, size
            self.num_bytes += size
        self._entries.move_to_end(key)
        return self._entries[key][0]


def _arguments(compute: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """All arguments of a call by name."""
    signature, found = inspect.signature(compute), dict[str, Any]()
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        is_more = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        found.update(value if is_more else {name: value})
    return found


def _items(given: dict[str, Any], source: Source) -> list[dict[str, torch.Tensor]] | None:
    """Each item's tensors; None where they are not the prompt's or can't be told apart."""
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    others = [value for name, value in given.items() if name not in tensors]
    is_own = all(
        getattr(source.inputs.get(name), "shape", None) == value.shape
        for name, value in tensors.items()
    )
    has_others = next(tensors_of(others), None) is not None
    if not tensors or not is_own or has_others:
        return None
    return items_of({name: source.inputs[name] for name in tensors}, len(source.digests))


def _features(
    compute: Callable[..., Any], given: dict[str, Any], item: dict[str, torch.Tensor]
) -> Any:
    """The features of one image or sound, without the states that they are made of."""
    inputs = {name: value.to(given[name]) for name, value in item.items()}
    found = compute(**{**given, **inputs})
    if not isinstance(found, dict) or found.get(_FEATURES) is None:
        return found
    return type(found)(**{name: one for name, one in found.items() if name not in _ON_THE_WAY})


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)


def _joined(outputs: list[Any]) -> Any:
    """The outputs of several items as one."""
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
