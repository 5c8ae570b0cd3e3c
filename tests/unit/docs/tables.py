"""The tables of docs/ that are made from code; ``python -m tests.unit.docs.tables`` writes them.

Each lies between ``<!-- NAME -->`` and ``<!-- end of NAME -->``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from generator.spec.task_names import HEADS
from hf_triton.ports import callers
from hf_triton.ports.openai.routes import tgi
from hf_triton.ports.openai.schema.body import fields_of
from hf_triton.ports.openai.schema.request import Chat
from hf_triton.runtime.metrics.publishing import Family
from hf_triton.runtime.metrics.work_metrics import (
    WorkMetrics,
    encoder_families,
    pipeline_families,
)
from hf_triton.runtime.request.response_cache import ResponseCache
from hf_triton.serving.supervision import health
from hf_triton.text_generation.engine.metrics import GAUGES, EngineMetrics
from hf_triton.text_generation.engine.metrics import families as of_engines
from tests.support.triton import ROOT
from tests.unit.generator import regenerate
from tests.unit.requests import options_page

DOCS = ROOT / "docs"


def written(page: str, text: str) -> str:
    """The text of a page with its tables as the code is."""
    for name, table in TABLES[page].items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert end, f"{page} has no place for {name}"
        text = f"{before}{begin}{table()}{end}{after}"
    return text


def _fields(body: type[Struct]) -> str:
    """The names of a body's fields, by what becomes of them."""
    rows: dict[str, list[str]] = {
        "work": [],
        "are accepted with this value alone": [],
        "are refused": [],
    }
    for name, (rules, _) in sorted(fields_of(body).items()):
        if "refused" in rules or rules.get("only") == ():
            rows["are refused"].append(f"`{name}`")
        elif "only" in rules:
            value = json.dumps(rules["only"][0])
            rows["are accepted with this value alone"].append(f"`{name}` ({value})")
        else:
            rows["work"].append(f"`{name}`")
    lines = [f"| {effect} | {', '.join(names)} |\n" for effect, names in rows.items() if names]
    return "| fields that | |\n|---|---|\n" + "".join(lines)


def _metrics(families: Iterable[Family]) -> str:
    return _metric_rows(
        (
            family.name.removesuffix("_count"),
            "histogram" if family.name.endswith("_count") else _kind(is_counter=family.counter),
            family.help,
            sorted({name for sample in family.samples for name in sample.labels} - {"le"}),
        )
        for family in families
        if not family.name.endswith(("_bucket", "_sum"))
    )


def _kind(*, is_counter: bool) -> str:
    return "counter" if is_counter else "gauge"


def _metric_rows(metrics: Iterable[tuple[str, str, str, list[str]]]) -> str:
    rows = "".join(
        f"| `{name.removeprefix('hf_triton_')}`{'¹' * (kind == 'histogram')} | {told.rstrip('.')}"
        f"{''.join(f', by `{label}`' for label in labels)} |\n"
        for name, kind, told, labels in metrics
    )
    return f"| name | |\n|---|---|\n{rows}"


def _engine_families() -> Iterator[Family]:
    metrics = EngineMetrics()
    yield from of_engines(metrics, dict.fromkeys(GAUGES, 0), ["name"])


def _caller_rows() -> str:
    told = callers.METRICS.items()
    return _metric_rows((f"caller_{name}_total", "counter", about, []) for name, about in told)


def _health_rows() -> str:
    return _metric_rows((name, kind, told, []) for name, (kind, told) in health.METRICS.items())


def _architectures() -> str:
    """The tasks by the ends of architectures' names."""
    ends: dict[tuple[str, ...], list[str]] = {}
    for end, tasks in HEADS.items():
        ends.setdefault(tasks, []).append(f"`{end}`")
    rows = (
        f"| {', '.join(names)} | {', else '.join(f'`{task}`' for task in tasks)} |\n"
        for tasks, names in ends.items()
    )
    return f"| ends in | task |\n|---|---|\n{''.join(rows)}"


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "openai-api.md": {
        "fields of a chat": lambda: _fields(Chat),
        "parameters of TGI": lambda: _fields(tgi.Parameters),
    },
    "models-yaml.md": {"architectures": _architectures},
    "observability.md": {
        "metrics of text generation": lambda: _metrics(_engine_families()),
        "metrics of encoders": lambda: _metrics(encoder_families(WorkMetrics(), 0)),
        "metrics of pipelines": lambda: _metrics(
            pipeline_families(WorkMetrics(), running=0, waiting=0)
        ),
        "metrics of the response cache": lambda: _metrics(ResponseCache(1).families()),
        "metrics of callers": _caller_rows,
        "metrics of health": _health_rows,
    },
}


if __name__ == "__main__":
    for name in TABLES:
        before = (DOCS / name).read_text(encoding="utf-8")
        (DOCS / name).write_text(written(name, before), encoding="utf-8")
    for page, made in (
        (options_page.PAGE, options_page.with_table),
        (regenerate.PAGE, regenerate.documented),
    ):
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
