"""Renders the templates of a deployment.

Every text passes a filter that quotes it, or printing it is refused: nothing that a flag or a
models.yaml says can end a string early. Grafana's dashboard is made of the short list of its panels
in templates/dashboard.yaml. Knows YAML and Grafana's panels; knows nothing of what is deployed.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from generator.deploy.options import quantity
from generator.deploy.server import Server
from generator.render.strict_jinja import Filter, rendered, strict_environment

_TEMPLATES = Path(__file__).parent / "templates"
_INDENT = 2  # of PyYAML's blocks
_RULES, _DASHBOARD = "rules.yaml", "dashboard.yaml"
_QUANTILES = (0.5, 0.95, 0.99)
_SIZE = 8  # of a panel, in Grafana's grid of 24 columns
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def render(name: str, server: Server, **values: object) -> bytes:
    """The text of a template, to which ``s`` are the server's options. Raises TemplateError where
    it is broken.
    """
    return rendered(_environment(), name, server=server, s=server.asked, **values).encode()


def _read(name: str) -> str:
    """A file beside the templates, as it is."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=4096)
def quote(text: str) -> Markup:
    """``text`` as a double-quoted string of YAML, in ASCII: what it holds stays inside."""
    return Markup(_dumped(text, '"')[0])  # noqa: S704


def quote_for_compose(text: str) -> Markup:
    """Quotes with each dollar written twice, because Compose replaces ``$NAME``."""
    return quote(text.replace("$", "$$"))


def block(text: str, indent: int) -> Markup:
    """``text`` as a literal YAML block with this ``indent``; quoted if a block can't hold it."""
    if text[:1].isspace() or not text.endswith("\n") or text.endswith("\n\n"):
        return quote(text)
    head, *lines = _dumped(text, "|")
    margin = " " * (indent - _INDENT)
    return Markup("\n".join([head, *(line and margin + line for line in lines)]))  # noqa: S704


def _dumped(text: str, style: str) -> list[str]:
    return yaml.safe_dump(text, default_style=style, width=math.inf).splitlines()


@functools.lru_cache
def _environment() -> jinja2.Environment:
    filters: dict[str, Filter] = {
        "yaml": quote,
        "quantity": lambda mib: quote(quantity(mib)),
        "compose": quote_for_compose,
        "block": block,
    }
    return strict_environment(_TEMPLATES, filters, "unquoted")


def rules() -> bytes:
    return _read(_RULES).encode()


def rule_groups() -> Markup:
    """``groups:`` of the same, as a PrometheusRule has it; the comment above it left out."""
    text = _read(_RULES)
    return Markup(text[text.index("groups:") :])  # noqa: S704


def dashboard() -> bytes:
    """Its rows one below the other, their panels three abreast."""
    short = yaml.safe_load(_read(_DASHBOARD))
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
