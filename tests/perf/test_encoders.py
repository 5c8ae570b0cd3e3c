"""The command line, and the turns in which services are measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from perf.baselines.processes import running
from perf.encoders.__main__ import effort_of, parse_args
from perf.encoders.rounds import EncoderEffort, Measuring, Service, num_levels
from perf.load.level_process import LevelArguments
from perf.load.measure import Record


def test_without_arguments_everything_is_measured() -> None:
    args = parse_args([])
    assert args.targets == ("ours", "bfloat16", "fastapi", "mlserver", "in-process")
    assert effort_of(args).clients == (1, 8, 32, 128)
    assert str(args.output) == "perf/results/encoders"


def test_parts_can_be_asked_for() -> None:
    args = parse_args(["--quick", "--targets", "ours", "--clients", "32", "--rounds", "2"])
    assert args.targets == ("ours",)
    assert (effort_of(args).clients, effort_of(args).rounds) == ((32,), 2)


@pytest.mark.parametrize("words", [["--targets", "yours"], ["--rounds", "0"], ["--clients", "x"]])
def test_mistakes_say_what_was_expected(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_args(words)
    assert exit_info.value.code == 2
    assert f"got {words[1]!r}, expected" in capsys.readouterr().err


def test_the_order_turns_around_every_other_round() -> None:
    asked: list[tuple[str, str, int]] = []

    def service(name: str) -> Service:
        def records_of(
            arguments: LevelArguments, on_answer: Callable[[int], object]
        ) -> list[Record]:
            asked.append((name, arguments.load, arguments.clients))
            on_answer(1)
            return [Record(0, 0.0, 0.5, 0), Record(1, 0.5, 1.0, 0)]

        return Service(records_of, pid=1)

    effort = EncoderEffort(rounds=2, clients=(8,), level_s=0.1)
    services = {name: service(name) for name in ("a", "b")}
    with tqdm(disable=True) as bar:
        measuring = Measuring(services, effort, 0, bar, document_command=None)
        levels = [level for number in (1, 2) for level in measuring.round(number)]
    assert len(levels) == num_levels(effort, 2, documents=False)
    assert asked[:2] == [("a", "texts-16", 1), ("b", "texts-16", 1)]
    assert asked[-2:] == [("b", "texts", 8), ("a", "texts", 8)]


def test_what_a_peer_writes_where_it_is_started_lands_beside_its_log(tmp_path: Path) -> None:
    writes = "from pathlib import Path; Path('.metrics').mkdir()"
    with running([sys.executable, "-c", writes], {}, tmp_path / "peer.log") as process:
        process.wait(60)
    assert (tmp_path / ".metrics").is_dir()
