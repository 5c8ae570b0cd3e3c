"""Alert rules, and Grafana's dashboard, whose JSON is made from a short list of its panels.

The queries are those of templates/rules.yaml and templates/dashboard.yaml; this module knows
Grafana's panels and no metric.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from markupsafe import Markup

from generator.deploy.rendering import read

_RULES, _DASHBOARD = "rules.yaml", "dashboard.yaml"
_QUANTILES = (0.5, 0.95, 0.99)
_SIZE = 8  # of a panel, in Grafana's grid of 24 columns
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def rules() -> bytes:
    return read(_RULES).encode()


def rule_groups() -> Markup:
    """``groups:`` of the same, as a PrometheusRule has it; the comment above it left out."""
    text = read(_RULES)
    return Markup(text[text.index("groups:") :])  # noqa: S704


def dashboard() -> bytes:
    """Its rows one below the other, their panels three abreast."""
    short = yaml.safe_load(read(_DASHBOARD))
    panels, y = list[dict[str, Any]](), 0
    for row in short.pop("rows"):
        place = {"x": 0, "y": y, "w": 3 * _SIZE, "h": 1}
        panels.append({"type": "row", "title": row["title"], "collapsed": False, "gridPos": place})
        for index, panel in enumerate(row["panels"]):
            line, column = divmod(index, 3)
            place = {"x": column * _SIZE, "y": y + 1 + line * _SIZE, "w": _SIZE, "h": _SIZE}
            panels.append({**_panel(panel), "gridPos": place})
        y = place["y"] + _SIZE
    numbered = [{"id": number, **panel} for number, panel in enumerate(panels, 1)]
    return f"{json.dumps({**short, 'panels': numbered}, indent=2, allow_nan=False)}\n".encode()


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    labels = ["model", panel["by"]] if "by" in panel else ["model"]
    queries = panel.get("queries") or list(_quantiles(panel["quantiles"], labels))
    return {
        "type": panel.get("kind", "timeseries"),
        "title": panel["title"],
        "description": panel.get("about", ""),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel["unit"], "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query["expr"],
                "legendFormat": query["legend"],
            }
            for index, query in enumerate(queries)
        ],
    }


def _quantiles(buckets: str, labels: Sequence[str]) -> Iterator[dict[str, str]]:
    """p50, p95 and p99 of a histogram, for each value of these labels."""
    rate = f"sum by ({', '.join(labels)}, le) (rate({buckets}[$__rate_interval]))"
    shown = " ".join(f"{{{{{label}}}}}" for label in labels)
    for quantile in _QUANTILES:
        expression = f"histogram_quantile({quantile}, {rate})"
        yield {"expr": expression, "legend": f"{shown} p{quantile * 100:.0f}"}
