"""What the command line asks for: axes, points, and what it says of mistakes."""

from __future__ import annotations

import pytest

from generator.cli import main
from generator.errors import UsageError
from perf.growth.axes.axis import doubled
from perf.growth.axes.named import AXES, chosen_axes, given_points


def test_points_are_doubled_up_to_the_last() -> None:
    assert doubled(64, 1024) == (64, 128, 256, 512, 1024)
    assert doubled(1, 1000)[-3:] == (256, 512, 1000)


def test_every_axis_has_its_range_and_ascending_points() -> None:
    spans = {name: (axis.points[0], axis.points[-1]) for name, axis in AXES.items()}
    assert spans == {
        "models-in-yaml": (1, 1000),
        "requests": (64, 1024),
        "clients": (1, 256),
        "prompts": (16, 2048),
        "models": (1, 32),
        "torch-models": (1, 32),
    }
    for axis in AXES.values():
        assert list(axis.quick_points) == sorted(axis.quick_points)
        assert axis.points[-1] <= axis.highest
        charted = {target for chart in axis.charts for target in chart.targets or axis.targets}
        assert charted == set(axis.targets)


def test_axes_are_chosen_in_their_own_order() -> None:
    assert [axis.name for axis in chosen_axes("clients, requests")] == ["requests", "clients"]
    assert len(chosen_axes(None)) == len(AXES)


def test_points_may_be_given_in_any_order() -> None:
    assert given_points(["clients=4,1,2,2"], chosen_axes("clients")) == {"clients": (1, 2, 4)}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--axes", "client"], "--axes: got 'client', expected some of models-in-yaml, requests"),
        (["--axes", ""], "--axes: got ''"),
        (["--points", "clients"], "got '', expected whole numbers from 1 to 4,096"),
        (["--points", "client=1"], "got 'client=1', expected AXIS=N,N,... of models-in-yaml"),
        (["--points", "clients=0"], "--points clients: got '0', expected whole numbers from 1"),
        (["--points", "prompts=4096"], "--points prompts: got '4096'"),
        (["--points", "clients=1,x"], "got 'x'"),
        (["--points", "clients=-1"], "got '-1'"),
        (["--points", "clients=1", "--points", "clients=2"], "clients is given twice"),
        (["--axes", "prompts", "--points", "clients=1"], "expected AXIS=N,N,... of prompts"),
    ],
)
def test_a_mistake_is_told_with_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["perf", "growth", *arguments]) == UsageError.exit_code
    assert message in capsys.readouterr().err


def test_repeats_have_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["perf", "growth", "--repeats", "0"])
    assert "got '0', expected a whole number from 1 to 100" in capsys.readouterr().err
