from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

from generator.errors import PerfError
from perf.report import rendering, schema
from perf.report.best import Bounds
from perf.report.points import points
from perf.report.rendering import RENDERINGS, write_renderings
from perf.report.results import read_results
from perf.report.schema import Load, Measurement, Percentiles, Run
from tests.unit.perf.report import example_runs

SCHEMA_FILE = Path(schema.__file__).with_name("report.schema.json")
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $x^2$ {{7*7}} ]]> --> | `a`"


class Page(HTMLParser):
    """The elements, texts and ids of a page."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.said = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.said += data

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.attributes if each == name]


def rendered(
    folder: Path, measurements: Iterator[Measurement], run: Run = example_runs.RUN
) -> Page:
    example_runs.write(folder, measurements, run)
    write_renderings(folder)
    return Page((folder / "run.html").read_text())


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sweep"
    endpoints = ("http-infer", "http-generate-stream")
    rendered(folder, example_runs.sweep(("demo",), endpoints, (1, 8, 64)))
    return folder


def test_the_page_is_one_well_formed_document(sweep: Path) -> None:
    page = Page((sweep / "run.html").read_text())
    assert page.open == []
    ids = page.values("id")
    assert len(ids) == len(set(ids)) > 10
    targets = [value[1:] for value in page.values("href")]
    targets += re.findall(r"url\(#([^)]+)\)", (sweep / "run.html").read_text())
    assert set(targets) <= set(ids)


def test_the_page_needs_no_other_file_and_runs_nothing(sweep: Path) -> None:
    text = (sweep / "run.html").read_text()
    page = Page(text)
    assert not {"script", "link", "iframe", "img", "object", "base"} & page.tags
    assert all(value.startswith("#") for value in page.values("href"))
    assert "@import" not in text
    assert not re.search(r"https?://", text)
    assert "default-src 'none'" in text
    assert len(text) < 1_000_000


def test_the_page_says_what_was_best_and_every_plot_in_words(sweep: Path) -> None:
    page = Page((sweep / "run.html").read_text())
    for words in (
        "Highest throughput",
        "Lowest latency",
        "Lowest time to first token",
        "Throughput against latency",
        "Time between tokens",
        "Batch occupancy",
        "Time in the queue",
        "CPU use",
        "Share of the roofline",
        "unstable 1 of 3 times",
        "AMD EPYC 9R14",
        "0123456789ab",
        "The machine was otherwise idle.",
    ):
        assert words in page.said
    assert page.values("role").count("img") == page.values("class").count("plot") == 10
    assert all(re.search(r"\d to ", words) for words in page.values("aria-label") if ". " in words)


def test_the_same_run_gives_the_same_bytes(sweep: Path) -> None:
    before = {name: (sweep / name).read_bytes() for name in RENDERINGS}
    write_renderings(sweep)
    assert {name: (sweep / name).read_bytes() for name in RENDERINGS} == before


def test_the_report_is_what_its_schema_says(sweep: Path) -> None:
    described = json.loads(SCHEMA_FILE.read_text())
    jsonschema.validate(json.loads((sweep / "report.json").read_text()), described)
    defined = described["$defs"]
    for kind, properties in (
        (Run, {**described["properties"]}),
        (Measurement, defined["measurement"]["properties"]),
        (Load, defined["load"]["properties"]),
        (Percentiles, defined["percentiles"]["properties"]),
    ):
        more = {"measurements", "problems"} if kind is Run else set()
        assert {each.name for each in fields(kind)} | more == set(properties)


def test_a_report_is_read_as_its_run_is(sweep: Path) -> None:
    assert read_results(sweep / "report.json") == replace(
        read_results(sweep), problems=read_results(sweep / "report.json").problems
    )


def test_csv_has_a_row_for_each_measurement_and_its_columns_stay(sweep: Path) -> None:
    rows = list(csv.reader((sweep / "run.csv").read_text().splitlines()))
    assert tuple(rows[0][: len(rendering.COLUMNS)]) == rendering.COLUMNS
    assert rows[0][len(rendering.COLUMNS) :][0] == "server.batch_occupancy"
    assert len(rows) == 1 + 18
    assert rendering.COLUMNS[:4] == ("target", "endpoint", "concurrency", "request_rate")


def evil_measurements() -> Iterator[Measurement]:
    drawn = random.Random(0)
    for callers in (1, 2, 4):
        load = Load(
            EVIL, "http-infer", callers, input_name="</style><b>", settings={"=cmd|calc": "@SUM(1)"}
        )
        yield replace(
            example_runs.measured(load, 0, drawn),
            num_errors=3,
            first_error='=HYPERLINK("x")</code><script>alert(3)</script>\n\x00\x1b[31m\udc80',
            stable=False,
            command="perf_analyzer --admin-key s3cret -u http://me:pa55@host "
            "-H 'Authorization: Bearer abcdef'",
        )


def test_names_errors_and_commands_are_shown_and_never_run(tmp_path: Path) -> None:
    run = replace(
        example_runs.RUN,
        title=EVIL,
        command=EVIL,
        commit=EVIL,
        notes=(EVIL,),
        hardware={EVIL: EVIL},
        versions={EVIL: EVIL},
        scenario={"x": EVIL},
    )
    page = rendered(tmp_path, evil_measurements(), run)
    assert page.open == []
    assert not {"script", "img", "b><"} & page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.said.count("<script>alert(1)</script>") > 10
    assert "49" not in page.values("aria-label")[0]
    markdown = (tmp_path / "run.md").read_text()
    outside_code = re.sub(r"(`+) .*? \1", "", markdown)
    assert "<script>" not in outside_code.replace("\\<", "")


def test_no_cell_of_the_csv_is_a_formula(tmp_path: Path) -> None:
    text = rendering.to_csv(list(evil_measurements()))
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == 4
    assert not [cell for row in rows for cell in row if cell.lstrip(" ").startswith(("=", "@"))]
    assert rows[1][rows[0].index("first_error")].startswith("'=HYPERLINK")
    assert rows[1][0] == EVIL


def test_secrets_are_in_no_file(tmp_path: Path) -> None:
    rendered(tmp_path, evil_measurements())
    for file in tmp_path.iterdir():
        text = file.read_text()
        assert not [secret for secret in ("s3cret", "pa55", "abcdef") if secret in text], file


def test_a_run_without_measurements_says_so(tmp_path: Path) -> None:
    assert "There are no measurements" in rendered(tmp_path, iter(())).said
    assert "No measurements." in (tmp_path / "run.md").read_text()


def test_a_load_that_only_failed_is_not_the_best(tmp_path: Path) -> None:
    load = Load("demo", "http-infer", concurrency=1)
    failed = Measurement(load, 0, "2026", 5.0, 0, 9, 0.0, first_error="HTTP 503: queue is full")
    page = rendered(tmp_path, iter([failed]))
    assert "No load was answered without errors" in page.said
    assert "9 of 9 requests failed" in page.said
    assert "HTTP 503: queue is full" in page.said


def test_closed_and_open_loops_have_plots_of_their_own(tmp_path: Path) -> None:
    drawn = random.Random(0)
    rates = [Load("demo", "http-infer", request_rate=float(rate)) for rate in (10, 20, 40)]
    callers = [Load("demo", "http-infer", concurrency=count) for count in (1, 2)]
    made = (example_runs.measured(load, 0, drawn) for load in rates + callers)
    page = rendered(tmp_path, made)
    assert "Request rate (requests/s)" in page.said
    assert "Concurrency (callers)" in page.said
    assert "open loop" in page.said


def test_of_too_many_lines_the_best_are_told_apart(tmp_path: Path) -> None:
    drawn = random.Random(0)
    made = (
        example_runs.measured(
            Load("demo", "http-infer", concurrency=count, settings={"instances": n}), 0, drawn
        )
        for n in range(10)
        for count in (1, 2)
    )
    page = rendered(tmp_path, made)
    assert "4 more; in colour the 6 with the highest throughput" in page.said


def test_a_broken_line_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    example_runs.write(tmp_path, example_runs.sweep(("demo",), ("http-infer",), (1, 2), 1))
    file = tmp_path / schema.MEASUREMENTS_FILE
    first, second = file.read_text().splitlines()
    file.write_text(f"{first}\nnonsense\n{second}\n")
    write_renderings(tmp_path)
    page = Page((tmp_path / "run.html").read_text())
    assert f"{schema.MEASUREMENTS_FILE}:2:" in page.said
    assert "2 measurements" in " ".join(page.said.split())


def test_bounds_choose_the_load_that_keeps_to_them(sweep: Path, tmp_path: Path) -> None:
    example_runs.write(tmp_path, example_runs.sweep(("demo",), ("http-infer",)))
    write_renderings(tmp_path, Bounds(p99_ms=300.0))
    text = (tmp_path / "run.md").read_text()
    line = next(line for line in text.splitlines() if "at most 300 ms" in line)
    found = points(read_results(tmp_path).measurements)
    kept = [point for point in found if Bounds(p99_ms=300.0).hold(point)]
    assert f"concurrency {max(point.load.concurrency or 0 for point in kept)} " in line


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match=r"not a run: it has no run\.json"):
        read_results(tmp_path)
    with pytest.raises(PerfError, match="not found; expected a folder"):
        read_results(tmp_path / "nothing")
    (tmp_path / "report.json").write_text('{"schema_version": 1}')
    with pytest.raises(PerfError, match=r"report\.json: kind: is missing"):
        read_results(tmp_path / "report.json")
