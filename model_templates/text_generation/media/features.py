"""Features of images and sounds that were computed before: an equal one is not computed again."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

_METHODS = ("get_image_features", "get_audio_features")


class FeatureCache:
    """What a model's encoders returned for contents with the same digests: at most ``max_bytes``,
    the least recently used go first.
    """

    def __init__(self, model: Any, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes, self.num_found = max_bytes, 0, 0
        self._kept: OrderedDict[object, tuple[Any, int]] = OrderedDict()
        self._digests: tuple[bytes, ...] = ()
        self._num_calls = 0
        for module in model.modules():
            for name in _METHODS:
                if callable(own := getattr(module, name, None)):
                    setattr(module, name, self._kept_or(own, name))

    @contextmanager
    def of(self, digests: tuple[bytes, ...]) -> Iterator[None]:
        """The encoders compute contents with these digests meanwhile, in the same order for equal
        ones.
        """
        self._digests, self._num_calls = digests, 0
        try:
            yield
        finally:
            self._digests = ()

    def _kept_or(self, compute: Callable[..., Any], name: str) -> Callable[..., Any]:
        @wraps(compute)  # generate reads the names of its arguments
        def features(*args: Any, **kwargs: Any) -> Any:
            digests = self._digests
            if not digests:
                return compute(*args, **kwargs)
            self._num_calls += 1
            key = (digests, name, self._num_calls)
            if key in self._kept:
                self.num_found += 1
                self._kept.move_to_end(key)
                return copy.copy(self._kept[key][0])
            self._digests = ()  # the method may call itself on a part of the model
            try:
                found = compute(*args, **kwargs)
            finally:
                self._digests = digests
            self._keep(key, copy.copy(found))
            return found

        return features

    def _keep(self, key: object, found: Any) -> None:
        size = sum(tensor.nbytes for tensor in _tensors(found))
        if size > self.max_bytes:
            return
        self._kept[key] = found, size
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self.num_bytes -= gone


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    for part in parts:
        yield from _tensors(part)
