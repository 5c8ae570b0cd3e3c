"""Reads metrics in Prometheus' text format."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import NamedTuple

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """A metric, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> list[Sample]:
    """The samples of a server's /metrics, without the buckets of histograms."""
    found = []
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) and not match[1].endswith("_bucket"):
            labels = dict(_LABEL.findall(match[2] or ""))
            with contextlib.suppress(ValueError):
                found.append(Sample(match[1], labels, float(match[3])))
    return found
