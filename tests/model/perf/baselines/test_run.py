"""A run's folder: gone on with, shown again, refused where it is another run's."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from generator.errors import EXIT_INPUT, EXIT_OK, PerfError
from perf.lab.baselines.plan import Plan, Step
from perf.lab.baselines.run import Comparison, begin, compare, share_of_limit
from perf.lab.baselines.servers.processes import Ports
from perf.lab.baselines.targets import Variant
from perf.report.schema import Measurement, append
from perf.roofline.step import machine_of

PLAN = Plan((Variant("ours", "float32"),), (1,), 1, num_requests=4, max_level_s=60, seed=0)


def comparison(folder: Path, plan: Plan = PLAN) -> Comparison:
    return Comparison(plan, folder / "run", folder / "environments", Ports(), "the command")


def measured(step: Step, num_errors: int = 0) -> Measurement:
    return Measurement(
        load=step.load,
        repeat=step.round,
        started="2030-01-01T00:00:00+00:00",
        duration_s=1.0,
        num_requests=4,
        num_errors=num_errors,
        first_error="HTTP 503: full" if num_errors else None,
        requests_per_s=4.0,
        output_tokens_per_s=200.0,
    )


@pytest.mark.parametrize("num_errors,code", [(0, EXIT_OK), (2, EXIT_INPUT)])
def test_a_run_that_lacks_nothing_is_shown_again_and_starts_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], num_errors: int, code: int
) -> None:
    asked = comparison(tmp_path)
    begin(asked)
    for step in PLAN.steps():
        append(asked.output, measured(step, num_errors))
    assert compare(asked) == code
    printed = capsys.readouterr()
    assert "| 1 | ours, float32 | 200 |" in printed.out
    assert "nothing is left to measure" in printed.err
    names = {path.name for path in asked.output.iterdir()}
    assert names >= {"baselines.md", "report.json", "run.csv", "run.html", "run.json", "run.md"}


def test_a_run_goes_on_with_what_it_has(tmp_path: Path) -> None:
    begin(comparison(tmp_path))
    append(comparison(tmp_path).output, measured(next(PLAN.steps())))
    longer = replace(PLAN, num_rounds=2, clients=(1, 8))
    _, found = begin(comparison(tmp_path, longer))
    assert len(found) == 1
    assert [(step.round, step.clients) for step in longer.missing(found)] == [
        *((0, 8), (1, 1), (1, 8))
    ]


def test_a_folder_of_another_load_is_refused(tmp_path: Path) -> None:
    begin(comparison(tmp_path))
    with pytest.raises(PerfError, match=r"holds a run with seed 0, now 1; name another folder"):
        begin(comparison(tmp_path, replace(PLAN, seed=1)))


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file", encoding="utf-8")
    with pytest.raises(PerfError, match="run"):
        compare(comparison(tmp_path))


def test_taken_ports_are_passed_over_and_too_few_are_an_error() -> None:
    with ExitStack() as held:
        probe = held.enter_context(socket.socket())
        probe.bind(("127.0.0.1", 0))
        probe.listen()
        taken = probe.getsockname()[1]
        listen = Ports(range(taken, min(taken + 20, 65536))).listen()
        assert taken not in (listen.http_port, listen.grpc_port, listen.metrics_port)
        with pytest.raises(PerfError, match=f"--ports {taken}-{taken}: 0 of them are free"):
            Ports(range(taken, taken + 1)).listen()


def test_one_sequence_is_bound_by_reading_the_weights_and_many_by_arithmetic() -> None:
    figures = {"memory_gb_per_s": 20.0, "float32_gflop_per_s": 250.0, "bfloat16_gflop_per_s": 500.0}
    machine = machine_of(figures, num_threads=2)
    alone, many = Step(0, 1, Variant("ours", "float32")), Step(0, 256, Variant("ours", "float32"))
    # 34 M parameters of two bytes at 20 GB/s, and a little for keys and values
    assert 100 / share_of_limit(machine, alone, 100) == pytest.approx(290, rel=0.15)
    fewer = Step(0, 256, Variant("ours", "bfloat16"))
    assert share_of_limit(machine, many, 1000) == pytest.approx(
        2 * share_of_limit(machine, fewer, 1000), rel=0.01
    )
