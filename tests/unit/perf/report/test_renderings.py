from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perf.report.points import shown
from perf.report.rendering import write_renderings
from perf.report.schema import Load, Measurement, Run
from tests.unit.perf.report import example_runs

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> $x^2$ {{7*7}} ]]> --> | `a`"


class Page(HTMLParser):
    """The elements and texts of a page."""

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
        self.handle_startendtag(tag, attrs)
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


def rendered(
    folder: Path, measurements: Iterator[Measurement], run: Run = example_runs.RUN
) -> Page:
    example_runs.write(folder, measurements, run)
    write_renderings(folder)
    return Page((folder / "run.html").read_text())


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "sweep"
    endpoints = ("http-infer", "http-generate-stream")
    rendered(folder, example_runs.sweep(("demo",), endpoints, (1, 8, 64)))
    return folder


def test_the_page_needs_no_other_file_and_runs_nothing(sweep: Path) -> None:
    text = (sweep / "run.html").read_text()
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "iframe", "img", "object", "base"} & page.tags
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_page_and_markdown_say_what_was_best_and_on_what(sweep: Path) -> None:
    page = Page((sweep / "run.html").read_text())
    for words in (
        *("highest throughput", "lowest latency p99", "lowest first token p99"),
        *("batch occupancy (rows)", "CPU (% of all cores)"),
        *("unstable 1 of 3 times", "AMD EPYC 9R14", "0123456789ab"),
    ):
        assert words in page.said
        assert words in (sweep / "run.md").read_text().replace("\\", "")
    assert "svg" in page.tags
    assert "http-generate-stream" in page.said.partition("All loads")[0], "a line's name"


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
            command="perf_analyzer -H hf_abcdefghijklmnopqrstuvwxyz -u http://me:pa55@host",
        )


def test_names_errors_and_commands_are_shown_and_never_run(tmp_path: Path) -> None:
    texts = dict.fromkeys(("title", "command", "commit"), EVIL)
    maps = {key: {EVIL: EVIL} for key in ("hardware", "versions", "scenario")}
    page = rendered(
        tmp_path, evil_measurements(), Run(**{**vars(example_runs.RUN), **texts, **maps})
    )
    assert page.open == []
    assert not {"script", "img", "b><"} & page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.said.count("<script>alert(1)</script>") > 10
    markdown = (tmp_path / "run.md").read_text()
    outside_code = re.sub(r"(`+) .*? \1", "", markdown)
    assert "<script>" not in outside_code.replace("\\<", "")
    for file in tmp_path.iterdir():
        text = file.read_text()
        assert not [each for each in ("hf_abcdef", "pa55") if each in text], file


def test_a_load_that_only_failed_is_not_the_best(tmp_path: Path) -> None:
    load = Load("demo", "http-infer", concurrency=1)
    failed = Measurement(load, 0, "2026", 5.0, 0, 9, 0.0, first_error="HTTP 503: queue is full")
    page = rendered(tmp_path, iter([failed]))
    for words in ("no load was answered without errors", "9 of 9 requests failed", "HTTP 503"):
        assert words in page.said


def test_without_matplotlib_the_page_has_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = rendered(tmp_path, example_runs.sweep(("demo",), ("http-infer",), (1, 2), 1))
    assert "svg" not in page.tags
    assert "All loads" in page.said


@pytest.mark.parametrize(
    "value, text",
    [(None, ""), (0.0, "0"), (0.12345, "0.123"), (9.9999, "10.0"), (99.96, "100"), (12, "12")],
)
def test_numbers_have_as_many_digits_as_mean_something(value: float | None, text: str) -> None:
    assert shown(value) == text
