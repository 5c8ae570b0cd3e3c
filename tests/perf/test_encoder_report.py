"""The tables: ratios within a round, medians over rounds, and what is expected."""

from __future__ import annotations

import json

from perf.encoders.report import EncoderReport, to_json, to_markdown
from perf.encoders.rounds import EncoderLevel, Measured
from perf.encoders.targets import APP, IN_PROCESS, MLSERVER, OURS
from perf.load.measure import Level


def level(
    target: str, number: int, texts_per_s: float, documents_per_s: float | None = None
) -> EncoderLevel:
    figures = Level(32, 100, 0, 2.0, 0.0, 0.01, 0.02, 0.03, 0, None)
    load = "texts-16" if target == "short" else "texts"
    name = OURS if target == "short" else target
    return EncoderLevel(name, load, number, texts_per_s, figures, documents_per_s)


def report(rounds: list[EncoderLevel], documents: list[EncoderLevel]) -> EncoderReport:
    return EncoderReport(
        created="2026-01-01T00:00:00+00:00",
        command="python -m perf.encoders",
        commit="abc",
        hardware={"cores": 2},
        versions={"python": "3.11"},
        model="BERT",
        load={"seed": 0},
        skipped={MLSERVER: "no network"},
        measured=Measured(rounds, documents, idle_cores=0.01),
    )


ROUNDS = [
    *(level(OURS, 1, 300.0), level(APP, 1, 100.0), level(IN_PROCESS, 1, 310.0)),
    *(level(IN_PROCESS, 2, 200.0), level(APP, 2, 50.0), level(OURS, 2, 180.0)),
]


def test_a_ratio_is_of_levels_of_the_same_round() -> None:
    text = to_markdown(report(ROUNDS, []))
    (row,) = (line for line in text.splitlines() if "ours, float32" in line)
    assert "240.0 (180.0 to 300.0) | 10.0 | 30.0 |" in row
    assert "3.30 (3.00 to 3.60) [≥ 2.5] |  | 0.93 (0.90 to 0.97) [≥ 0.85] |" in row


def test_what_was_left_out_is_told_with_its_reason() -> None:
    assert "- (b) MLServer was left out: no network" in to_markdown(report(ROUNDS, []))


def test_short_texts_are_told_alone_and_beside_documents() -> None:
    documents = [level("short", 1, 400.0), level("short", 1, 350.0, documents_per_s=7.25)]
    text = to_markdown(report(ROUNDS, documents))
    assert "| 8 clients alone |  | 400.0 (400.0 to 400.0) | 10.0 | 30.0 |" in text
    assert "| 8 clients beside 2 with documents | 7.2 | 350.0" in text


def test_the_json_has_every_level() -> None:
    found = json.loads(to_json(report(ROUNDS, [])))
    assert [lv["texts_per_s"] for lv in found["measured"]["rounds"]] == [
        300,
        100,
        310,
        200,
        50,
        180,
    ]
