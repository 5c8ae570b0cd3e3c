"""The table of quantized weights beside whole ones, without engines."""

from __future__ import annotations

from perf.quantization.__main__ import ON_CPU, parse_args
from perf.quantization.report import QuantizationReport, Run, to_markdown

RUNS = [
    *(Run("bfloat16", 1, speed, 0) for speed in (90.0, 100.0, 110.0)),
    *(Run("int8", 1, speed, 0) for speed in (100.0, 120.0, 300.0)),
]


def report(runs: list[Run]) -> QuantizationReport:
    memory = {"bfloat16": 2.0, "int8": 1.5}
    return QuantizationReport("now", "command", "abc", {}, {}, "Llama", {}, memory, runs)


def test_each_variant_stands_beside_bfloat16() -> None:
    assert to_markdown(report(RUNS)).splitlines()[-3:] == [
        "|---|--:|--:|",
        "| bfloat16 | 2.00 (1.00) | 100 (1.00) |",
        "| int8 | 1.50 (0.75) | 120 (1.20) |",
    ]


def test_failed_answers_are_told() -> None:
    assert report([*RUNS, Run("int8", 1, 0.0, 3)]).problems() == [
        "int8, 1 clients: 3 answers failed"
    ]


def test_by_default_what_runs_on_a_cpu_with_torchao_is_measured() -> None:
    assert parse_args([]).variants == list(ON_CPU)
