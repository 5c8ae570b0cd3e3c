"""The custom metrics of Triton's Python backend, and what ``/metrics`` would show of them.

As in 24.10: a family made again under its name and kind is the same one, as is a metric made again
with its labels, and both are gone with the last object that holds them. A failing call inside
``initialize`` crashed a real server in half of its starts, so models must not rely on one.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping
from enum import Enum

from triton_model_exception import TritonModelException

_Labels = frozenset[tuple[str, str]]
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_families: weakref.WeakValueDictionary[str, _Family] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # models publish from threads of their own, while tests read


class Kind(Enum):
    """A family's kind."""

    COUNTER, GAUGE = range(2)


class _Value:
    def __init__(self, family: _Family) -> None:
        self.family = family  # held as long as one of its metrics
        self.number = 0.0


class _Family:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.values: weakref.WeakValueDictionary[_Labels, _Value] = weakref.WeakValueDictionary()


class Metric:
    """One number; every call is thread-safe."""

    def __init__(self, value: _Value) -> None:
        self._value = value

    def increment(self, by: float) -> None:
        if by < 0 and self._value.family.kind is Kind.COUNTER:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be "
                "incremented monotonically by non-negative values."
            )
        with _lock:
            self._value.number += by

    def set(self, value: float) -> None:
        if self._value.family.kind is Kind.COUNTER:
            raise TritonModelException(
                "Failed to set metric value: TRITONSERVER_METRIC_KIND_COUNTER does not support Set"
            )
        self._value.number = float(value)

    def value(self) -> float:
        return self._value.number


class MetricFamily:
    """Metrics of one name that differ by their labels."""

    COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE

    def __init__(self, name: str, description: str, kind: Kind) -> None:
        if not _NAME.fullmatch(name):
            raise TritonModelException("Error when creating MetricFamily: Invalid metric name")
        with _lock:
            self._family = _families.get(name) or _Family(kind)
            if self._family.kind is not kind:
                raise TritonModelException(
                    "Error when creating MetricFamily: Family name already exists with different "
                    "type"
                )
            _families[name] = self._family

    def Metric(self, labels: Mapping[str, str] | None = None) -> Metric:  # noqa: N802, Triton's own
        key = frozenset((labels or {}).items())
        with _lock:
            value = self._family.values.get(key) or _Value(self._family)
            self._family.values[key] = value
        return Metric(value)


def values(name: str) -> dict[_Labels, float]:
    """A family's numbers on ``/metrics``, by their labels."""
    with _lock:
        family = _families.get(name)
        return {} if family is None else {key: v.number for key, v in family.values.items()}


def value(name: str, **labels: str) -> float:
    """The one number of a family whose labels include ``labels``."""
    (found,) = (n for key, n in values(name).items() if key >= frozenset(labels.items()))
    return found
