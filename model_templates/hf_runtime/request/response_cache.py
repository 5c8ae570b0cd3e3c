"""Answers a request that was answered before from memory.

Triton has a response cache of its own, which can't be right here: it keeps errors, too, and gives
them to the next caller as an empty answer with status 200, and it gives a caller that lists its
outputs those that the first caller listed (24.10; nothing that a model does can prevent either).
Here only whole answers are kept, under everything that they depend on: input tensors, parameters
and the outputs asked for.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..metrics.publishing import Family, Sample
from .plain_request import PlainRequest
from .responder import Responder
from .tensors import is_tritons_own

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
Take = Callable[[PlainRequest, Iterable[str], Responder], None]

_PREFIX = "hf_triton_response_cache_"
_ENTRY_BYTES = 512  # what an entry takes beyond its arrays, roughly
_TEXT_BYTES = 40  # what a text takes beyond its characters


class ResponseCache:
    """The last answers of one instance of a model, ``max_bytes`` of them; the one that was not
    asked for the longest is forgotten first. Every method may be called from any thread.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Outputs, int]] = OrderedDict()
        self._num_bytes = 0
        self._num_hits = 0
        self._num_misses = 0
        self._lock = threading.Lock()

    def receive(
        self, request: PlainRequest, listed: Iterable[str], responder: Responder, take: Take
    ) -> None:
        """Answers from memory, or passes the request on to ``take`` and keeps its answer."""
        outputs = tuple(listed)
        key = request_key(request, outputs)
        found = self._find(key)
        if found is None:
            take(request, outputs, _Keeping(responder, self, key))
        else:
            responder.send({name: array.copy() for name, array in found.items()}, final=True)

    def keep(self, key: bytes, outputs: Outputs) -> None:
        """Remembers an answer, unless it alone is more than all that may be kept."""
        size = _ENTRY_BYTES + sum(map(_size, outputs.values()))
        if size > self._max_bytes:
            return
        copies = {name: array.copy() for name, array in outputs.items()}
        with self._lock:
            self._forget(key)
            self._entries[key] = (copies, size)
            self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                self._forget(next(iter(self._entries)))

    def families(self) -> Iterator[Family]:
        """What was counted, as Prometheus reads it."""
        numbers = (
            ("hits_total", "Requests answered from the response cache", True, self._num_hits),
            ("misses_total", "Requests that it had no answer for", True, self._num_misses),
            ("entries", "Answers in the response cache", False, len(self._entries)),
            ("bytes", "Memory that the response cache takes", False, self._num_bytes),
        )
        for name, help_text, counter, number in numbers:
            yield Family(f"{_PREFIX}{name}", help_text, counter, (Sample({}, float(number)),))

    def _find(self, key: bytes) -> Outputs | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._num_misses += 1
                return None
            self._num_hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def _forget(self, key: bytes) -> None:
        _, size = self._entries.pop(key, ({}, 0))
        self._num_bytes -= size


class _Keeping:
    """Keeps the answer that it sends; an error is not kept."""

    def __init__(self, inner: Responder, cache: ResponseCache, key: bytes) -> None:
        self.request_id = inner.request_id
        self._inner = inner
        self._cache = cache
        self._key = key

    def send(self, outputs: Outputs, *, final: bool) -> None:
        assert final, "a model with a response cache answers once"
        self._cache.keep(self._key, outputs)
        self._inner.send(outputs, final=final)

    def fail(self, error: Exception) -> None:
        self._inner.fail(error)

    def is_cancelled(self) -> bool:
        return self._inner.is_cancelled()


def request_key(request: PlainRequest, listed: Iterable[str]) -> bytes:
    """A digest of all that an answer depends on; each part is written with its length."""
    given = {name: v for name, v in request.given.items() if not is_tritons_own(name)}
    head = json.dumps([given, sorted(listed), sorted(request.inputs)], sort_keys=True)
    digest = hashlib.blake2b(head.encode(), digest_size=32)
    for name in sorted(request.inputs):
        array = request.inputs[name]
        digest.update(f"|{array.dtype.name}{array.shape}".encode())
        for part in _parts(array):
            digest.update(f"|{len(part)}|".encode() + part)
    return digest.digest()


def _parts(array: Array) -> Iterator[bytes]:
    if array.dtype != np.object_:
        yield array.tobytes()
        return
    for item in array.reshape(-1).tolist():
        yield item.encode() if isinstance(item, str) else item


def _size(array: Array) -> int:
    if array.dtype != np.object_:
        return int(array.nbytes)
    return sum(len(item) + _TEXT_BYTES for item in array.reshape(-1).tolist())
