"""Ratios within a round, and the tables as readers see them."""

from __future__ import annotations

from pathlib import Path

from perf.lab.baselines.report import (
    FIGURES,
    STREAMS,
    pairs,
    ratio,
    ratio_cell,
    to_markdown,
    write_markdown,
)
from perf.lab.baselines.targets import Variant
from perf.report.schema import Load, Measurement, Percentiles, Run

OURS, VLLM = Variant("ours", "float32"), Variant("vllm", "float32")
TUTORIAL = Variant("tutorial", "float16")
TIMES = Percentiles(1000.0, 1000.0, 2345.0, 2500.0, 3000.0)
RUN = Run(
    kind="baselines",
    created="2030-01-01T00:00:00+00:00",
    command="hf-triton perf baselines",
    commit="0123456789ab",
    hardware={"cpu": "A CPU", "cores": 2},
    versions={"python": "3.11.7"},
    scenario={"seed": 0},
    notes=["vLLM, bfloat16 is left out from round 1, 1 clients on: no room"],
)


def measured(
    variant: Variant, clients: int, number: int, rate: float, *, streams: bool = False
) -> Measurement:
    endpoint = "http-generate-stream" if streams else "http-infer"
    return Measurement(
        load=Load(variant.name, endpoint, clients, settings={"dtype": variant.dtype}),
        repeat=number,
        started=RUN.created,
        duration_s=20.0,
        num_requests=512,
        num_errors=0,
        requests_per_s=25.6,
        latency=TIMES,
        time_to_first_token=TIMES if streams else None,
        inter_token_latency=TIMES if streams else None,
        output_tokens_per_s=rate,
        server={"tokens_per_chunk": 1.25} if streams else {},
        machine={"server_cpu_cores": 1.9, "memory_gib": 0.62, "other_cpu_cores": 0.0},
    )


ROUNDS = [
    *(measured(OURS, 8, number, rate) for number, rate in enumerate((600.0, 700.0, 500.0))),
    *(measured(VLLM, 8, number, rate) for number, rate in enumerate((500.0, 500.0, 500.0))),
    measured(TUTORIAL, 8, 0, 100.0),
    measured(OURS, 256, 0, 900.0),
    measured(VLLM, 256, 0, 1200.0),
]


def test_a_ratio_measured_beside_other_work_says_so() -> None:
    values = vars(measured(VLLM, 8, 0, 500.0))
    disturbed = Measurement(**{**values, "machine": {"other_cpu_cores": 0.5}})
    found = ratio([measured(OURS, 8, 0, 600.0), disturbed], OURS, VLLM, 8)
    assert found is not None
    assert ratio_cell(found) == "1.20 [≥ 1.1] (busy machine)"


def test_streams_are_not_compared_with_whole_answers() -> None:
    streams = [measured(OURS, 1, 0, 100.0), measured(VLLM, 1, 0, 90.0, streams=True)]
    assert ratio(streams, OURS, VLLM, 1) is None


def test_ours_is_compared_in_the_other_ones_number_format_or_its_only_one() -> None:
    bfloat16 = measured(Variant("ours", "bfloat16"), 8, 0, 1.0)
    assert pairs([*ROUNDS, bfloat16]) == [
        (OURS, TUTORIAL),
        (OURS, VLLM),
        (Variant("ours", "bfloat16"), TUTORIAL),
    ]


def test_the_tables_have_medians_spreads_and_what_is_asked() -> None:
    streams = measured(OURS, 8, 0, 550.0, streams=True)
    assert to_markdown(RUN, [*ROUNDS, streams]).splitlines()[:18] == [
        "| ours, useful tokens/s | against | 8 clients | 256 clients |",
        "|:--|:--|--:|--:|",
        "| float32 | tutorial model, float16 | 6.00 [≥ 6] |  |",
        "| float32 | vLLM, float32 | 1.20 (1.00 to 1.40) [≥ 1.1] | 0.75 [≥ 1] missed |",
        "",
        f"| {' | '.join(FIGURES)} |",
        "|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|",
        "| 8 | ours, float32 | 600 (500 to 700) |  | 1.00 | 2.35 | 3.00 | 512 | 1.9 | 0.6 |",
        "| 8 | tutorial model, float16 | 100 |  | 1.00 | 2.35 | 3.00 | 512 | 1.9 | 0.6 |",
        "| 8 | vLLM, float32 | 500 (500 to 500) |  | 1.00 | 2.35 | 3.00 | 512 | 1.9 | 0.6 |",
        "| 256 | ours, float32 | 900 |  | 1.00 | 2.35 | 3.00 | 512 | 1.9 | 0.6 |",
        "| 256 | vLLM, float32 | 1,200 |  | 1.00 | 2.35 | 3.00 | 512 | 1.9 | 0.6 |",
        "",
        f"| {' | '.join(STREAMS)} |",
        "|--:|:--|--:|--:|--:|--:|",
        "| 8 | ours, float32 | 1000 / 3000 | 1000 / 3000 | 1.25 | 550 |",
        "",
        "- command: `hf-triton perf baselines`",
    ]


def test_what_makes_a_figure_doubtful_stands_below(tmp_path: Path) -> None:
    values = vars(measured(OURS, 8, 1, 600.0))
    doubtful = [
        Measurement(**{**values, "num_errors": 2, "first_error": "HTTP 503"}),
        Measurement(**{**values, "stable": False, "num_requests": 40}),
        Measurement(**{**values, "machine": {"other_cpu_cores": 1.5}}),
    ]
    text = write_markdown(tmp_path, RUN, doubtful)
    assert (tmp_path / "baselines.md").read_text(encoding="utf-8") == text
    assert text.splitlines()[-4:] == [
        "- vLLM, bfloat16 is left out from round 1, 1 clients on: no room",
        "- **problem**: ours, float32, 8 clients, round 2: 2 bad answers, the first: HTTP 503",
        "- ours, float32, 8 clients, round 2: 40 requests were counted in the time that it had",
        "- ours, float32, 8 clients, round 2: other processes took 1.5 cores meanwhile",
    ]
