"""The command line of the comparison."""

from __future__ import annotations

import pytest

from perf.baselines.__main__ import parse_args


def test_without_arguments_everything_is_measured() -> None:
    args = parse_args([])
    assert args.targets == ("baseline", "triton", "in-process")
    assert (args.clients, args.quick, args.seed) == (None, False, 0)
    assert str(args.output) == "perf/results/compare"


def test_clients_and_targets_are_lists() -> None:
    args = parse_args(["--clients", "1,32", "--targets", "triton"])
    assert (args.clients, args.targets) == ((1, 32), ("triton",))


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--clients", "0"], "got '0', expected numbers from 1, as in 1,8,32"),
        (["--clients", "many"], "got 'many', expected numbers from 1, as in 1,8,32"),
        (["--targets", "gpu"], "got 'gpu', expected some of baseline,triton,in-process"),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_args(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
