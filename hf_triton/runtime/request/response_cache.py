"""Answers a request from memory if the same one was answered before.

Not Triton's own response cache, which gives wrong answers (24.10, and no model can prevent it): it
also keeps errors, and gives them to the next caller as an empty answer with status 200; and it
answers a request for some outputs with those that the first caller asked for. This one keeps
answers only, under all that they depend on: input tensors, parameters and requested outputs; and
under the request's salt, so that no caller finds out what another one asked.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from msgspec import msgpack

from ..metrics.publishing import Family, one_number
from .declared_tensor import described
from .request import Request
from .request_parameters import salt_of
from .responder import Array, Responder
from .tensors import is_server_parameter

Outputs = Mapping[str, Array]

_PREFIX = "hf_triton_response_cache_"
_ENTRY_BYTES = 512  # memory of an entry beyond its arrays, roughly
_TEXT_BYTES = 40  # memory of a text beyond its characters


class ResponseCache:
    """Evicts the least recently used answers beyond ``max_bytes``; safe from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, tuple[Outputs, int]] = OrderedDict()
        self._num_bytes = 0
        self._num_hits = 0
        self._num_misses = 0
        self._lock = threading.Lock()

    def receive(self, request: Request, pass_on: Callable[[Request], None]) -> None:
        """Answers from memory, or passes the request on and keeps its answer."""
        key = request_key(request)
        with self._lock:
            found, _ = self._entries.get(key, (None, 0))
            self._num_misses += found is None
            self._num_hits += found is not None
            if found is not None:
                self._entries.move_to_end(key)
        if found is None:
            keeping = _CachingResponder(request.responder, self, key)
            pass_on(replace(request, responder=keeping))
        else:
            answer = {name: array.copy() for name, array in found.items()}
            request.responder.send(answer, final=True)

    def store(self, key: bytes, outputs: Outputs) -> None:
        """Keeps an answer, unless it alone is larger than ``max_bytes``."""
        size = _ENTRY_BYTES + sum(map(_num_bytes_of, outputs.values()))
        if size > self._max_bytes:
            return
        copies = {name: array.copy() for name, array in outputs.items()}
        with self._lock:
            self._evict(key)
            self._entries[key] = (copies, size)
            self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                self._evict(next(iter(self._entries)))

    def families(self) -> Iterator[Family]:
        """Hits, misses and size, for MetricsPublisher."""
        numbers = (
            ("hits_total", "Requests answered from the response cache", self._num_hits),
            ("misses_total", "Requests that it could not answer", self._num_misses),
            ("entries", "Answers in the response cache", len(self._entries)),
            ("bytes", "Memory that the response cache takes", self._num_bytes),
        )
        for name, about, number in numbers:
            is_counter = name.endswith("_total")
            yield one_number(f"{_PREFIX}{name}", about, number, counter=is_counter)

    def _evict(self, key: bytes) -> None:
        _, size = self._entries.pop(key, ({}, 0))
        self._num_bytes -= size


class _CachingResponder:
    """Sends a response and keeps it; an error is not kept."""

    def __init__(self, inner: Responder, cache: ResponseCache, key: bytes) -> None:
        self.request_id = inner.request_id
        self.fail, self.is_cancelled = inner.fail, inner.is_cancelled
        self._inner, self._cache, self._key = inner, cache, key

    def send(self, outputs: Outputs, *, final: bool) -> None:
        assert final, "a model with a response cache answers once"
        self._cache.store(self._key, outputs)
        self._inner.send(outputs, final=final)


def request_key(request: Request) -> bytes:
    """A digest of all that an answer depends on, and of the salt. Raises RequestError."""
    values = request.parameters
    own = {name: value for name, value in values.items() if not is_server_parameter(name)}
    head = json.dumps([salt_of(values), own, sorted(request.outputs)], sort_keys=True)
    inputs = [(name, described(array)) for name, array in sorted(request.inputs.items())]
    return hashlib.blake2b(msgpack.encode((head, inputs)), digest_size=32).digest()


def _num_bytes_of(array: Array) -> int:
    if array.dtype != np.object_:
        return int(array.nbytes)
    return sum(len(item) + _TEXT_BYTES for item in array.reshape(-1).tolist())
