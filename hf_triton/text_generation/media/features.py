"""A cache of the features of images and sounds, by digests of these. A model's method for features
is called as its forward calls it, or for each image and sound of a prompt by itself.

Digests also give numbers below 0, which stand for images and sounds where prompts are compared
token by token: the placeholders of all are the same tokens.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from hashlib import blake2b
from itertools import count, groupby
from typing import Any

import torch

from ..sequence.source import Source

_METHODS = ("get_image_features", "get_audio_features")
# A list of tensors in this field of an output has one for each item. In other fields it has one
# for each layer, as has a list of lists in any.
_FEATURES = "pooler_output"
_ON_THE_WAY = ("last_hidden_state", "hidden_states", "attentions")
_MOST_KNOWN = 65536  # contents; one that is forgotten gets another number and shares no more


class ContentNumbers:
    """Gives each digest a number below 0, on any thread. Where two first ask for one at the same
    time, it may get two numbers, and their prompts share nothing.
    """

    def __init__(self) -> None:
        numbers = count(-1, -1)
        self.of: Callable[[bytes], int] = lru_cache(_MOST_KNOWN)(lambda digest: next(numbers))

    def replace(
        self, token_ids: list[int], placeholders: Set[int], digests: tuple[bytes, ...]
    ) -> list[int]:
        """``token_ids`` with a digest's number in the place of each run of ``placeholders``. Where
        runs and digests don't match, all runs, or else the first token, get the number of all
        digests together.
        """
        runs = [
            (is_placeholder, list(run))
            for is_placeholder, run in groupby(token_ids, placeholders.__contains__)
        ]
        num_runs = sum(is_placeholder for is_placeholder, _ in runs)
        if num_runs != len(digests):
            whole = self.of(b"".join(digests))
            if not num_runs:
                return [whole, *token_ids[1:]]
            digests = (b"".join(digests),) * num_runs
        left = iter(digests)
        keys: list[int] = []
        for is_placeholder, run in runs:
            keys += [self.of(next(left))] * len(run) if is_placeholder else run
        return keys


def digests_of(inputs: Mapping[str, Any], num_items: int) -> tuple[bytes, ...]:
    """A digest of each item's part of a processor's tensors; where parts can't be told apart, of
    all tensors and the item's number.
    """
    items = items_of(inputs, num_items)
    if items is not None:
        return tuple(_digest(list(item.values())) for item in items)
    whole = _digest([value for _, value in sorted(inputs.items())])
    return tuple(whole + bytes([item % 256]) for item in range(num_items))


def items_of(inputs: Mapping[str, Any], num_items: int) -> list[dict[str, torch.Tensor]] | None:
    """Each item's part of a processor's tensors; None where the items can't be told apart."""
    parts: dict[str, Any] = {}
    for name, value in sorted(inputs.items()):
        parts[name] = _parts(name, value, inputs, num_items)
        if parts[name] is None:
            return None
    return [{name: own[item] for name, own in parts.items()} for item in range(num_items)]


def _parts(
    name: str, value: Any, inputs: Mapping[str, Any], num_items: int
) -> list[torch.Tensor] | None:
    """Splits a tensor by items, or returns None where they can't be told apart."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    grid = inputs.get("image_grid_thw")
    if name == "pixel_values" and isinstance(grid, torch.Tensor):
        counts = grid.prod(-1).tolist()
        if len(counts) == num_items and sum(counts) == len(value):
            return list(value.split(counts))
    if len(value) == num_items:
        return list(value.split(1))
    if len(value) == 1 and value.dim() > 1 and value.shape[1] == num_items:
        return list(value.split(1, dim=1))
    return [value] if num_items == 1 else None


def _digest(values: list[Any]) -> bytes:
    found = blake2b(digest_size=32)
    for value in values:
        if isinstance(value, torch.Tensor):
            found.update(f"{value.dtype} {tuple(value.shape)}".encode())
            # A copy in one piece: a part of one element keeps its whole's stride else.
            flat = value.reshape(-1).clone(memory_format=torch.contiguous_format)
            found.update(flat.view(torch.uint8).numpy().data)
        else:
            found.update(repr(value).encode())
    return found.digest()


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
