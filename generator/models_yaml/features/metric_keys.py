"""``metrics:`` of a model: what its hooks may observe, under names that Prometheus takes.

Knows nothing of hooks; that they are needed is one of model_rules.py's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from generator.spec.model_spec import Metric
from generator.yaml_file import schema
from generator.yaml_file.nodes import Key, Node
from generator.yaml_file.schema import Check, Report

TYPES = ("counter", "gauge", "histogram")
MAX_METRICS = 100
MAX_LABELS = 8
MAX_BUCKETS = 64
# https://prometheus.io/docs/concepts/data_model/; colons are for recording rules.
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}", re.ASCII)
_NAME_EXPECTED = "a name of letters, digits and _, at most 128, no digit first"
_OTHERS = ("hf_triton_", "nv_")
_OWN_LABELS = ("model", "version", "instance")
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


def check(node: Node, report: Report) -> tuple[Metric, ...] | None:
    """The metrics of a map from their names; each mistake is reported."""
    if not isinstance(node.value, dict):
        report.expected(node, "a map from metrics' names to type, help, labels and buckets")
        return None
    if len(node.value) > MAX_METRICS:
        report.add(node, f"got {len(node.value)} metrics, expected at most {MAX_METRICS}")
    metrics = [_metric(key, child, report) for key, child in node.value.items()]
    _refuse_shared_names(node, [metric for metric in metrics if metric], report)
    return tuple(metric for metric in metrics if metric)


@dataclass(frozen=True)
class MetricClaim:
    """A metric of one model, and where it stands."""

    node: Node
    metric: Metric


def claims(node: Node, metrics: Iterable[Metric]) -> Iterator[MetricClaim]:
    """The metrics that ``node`` declares."""
    for metric in metrics:
        place = node.get(metric.name)
        if place is not None:
            yield MetricClaim(place, metric)


def refuse_differences(claimed: Iterable[MetricClaim], report: Report) -> None:
    """Reports a metric that another model declares otherwise: on /metrics they are one."""
    first: dict[str, MetricClaim] = {}
    for claim in claimed:
        other = first.setdefault(claim.metric.name, claim)
        if other.metric != claim.metric:
            line = f"the metric of this name in line {other.node.line}"
            report.add(claim.node, f"differs from {line}; expected the same, or another name")


def _metric(key: Key, node: Node, report: Report) -> Metric | None:
    before = len(report.problems)
    _check_name(key, report)
    keys: dict[str, Check] = {
        "type": schema.choice(*TYPES),
        "help": schema.text("a line that says what it counts"),
        "labels": schema.list_of(_label, "a list of labels' names", unique=True),
        "buckets": schema.list_of(schema.number(), "a list of upper bounds", unique=True),
    }
    given = schema.mapping(keys, "a map with type, help, labels and buckets")(node, report)
    if isinstance(node.value, dict) and node.get("type") is None:
        report.add(node, f"missing key 'type': one of {', '.join(TYPES)}")
    _check_buckets(node, given, report)
    labels = node.get("labels")
    if labels is not None and len(given.get("labels", ())) > MAX_LABELS:
        report.add(labels, f"got {len(given['labels'])} labels, expected at most {MAX_LABELS}")
    if len(report.problems) > before:
        return None
    return Metric(
        key.name,
        given["type"],
        given.get("help", key.name.replace("_", " ")),
        given.get("labels", ()),
        given.get("buckets", ()),
    )


def _check_name(key: Key, report: Report) -> None:
    if not _NAME.fullmatch(key.name):
        report.add(key, f"got {key.name[:60]!a}, expected {_NAME_EXPECTED}")
    for prefix in _OTHERS:
        if key.name.lower().startswith(prefix):
            report.add(key, f"names that begin with {prefix} are the server's own")


def _label(node: Node, report: Report) -> str | None:
    name: str | None = schema.text(_NAME_EXPECTED, _NAME.pattern)(node, report)
    if name in _OWN_LABELS:
        report.add(node, f"got {schema.show(node)}, which every metric has by itself")
    elif name == "le" or (name or "").startswith("__"):
        report.add(node, f"got {schema.show(node)}, which Prometheus keeps for itself")
    else:
        return name
    return None


def _check_buckets(node: Node, given: dict[str, Any], report: Report) -> None:
    kind, place = given.get("type"), node.get("buckets")
    if kind == "histogram" and place is None:
        report.add(node, "missing key 'buckets': a histogram's upper bounds, ascending")
    elif place is None or not isinstance(place.value, list):
        return
    elif kind in ("counter", "gauge"):
        report.add(place, f"a {kind} has no buckets; only a histogram does")
    elif len(place.value) > MAX_BUCKETS:
        report.add(place, f"got {len(place.value)} bounds, expected at most {MAX_BUCKETS}")
    else:
        _check_ascending(place.value, report)


def _check_ascending(nodes: list[Node], report: Report) -> None:
    before = -math.inf
    for node in nodes:
        value = node.value
        if isinstance(value, int | float) and not isinstance(value, bool):
            if value < before:
                report.add(node, f"got {schema.show(node)} after {before:g}, expected ascending")
            before = value


def _refuse_shared_names(node: Node, metrics: list[Metric], report: Report) -> None:
    """Reports metrics named like one of the three families that a histogram has on /metrics."""
    taken = {
        f"{metric.name}{part}": metric.name
        for metric in metrics
        if metric.type == "histogram"
        for part in _HISTOGRAM_PARTS
    }
    for key in node.value if isinstance(node.value, dict) else ():
        if key.name in taken:
            report.add(key, f"is what the histogram {taken[key.name]} has on /metrics already")
