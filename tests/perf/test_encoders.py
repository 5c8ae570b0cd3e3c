"""The command line, the turns in which services are measured, and environments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from perf.encoders.__main__ import effort_of, parse_args
from perf.encoders.environments import Environment, EnvironmentMissingError, make_importable
from perf.encoders.rounds import EncoderEffort, Measuring, Service, num_levels
from perf.encoders.servers import running
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


def test_an_environment_is_made_once(tmp_path: Path) -> None:
    finished: list[Path] = []
    environment = Environment(tmp_path / "env", (), finished.append)
    environment.ensure()
    environment.ensure()
    assert len(finished) == 1
    assert finished[0].is_dir()
    assert Path(environment.program("python")).exists()


def test_an_environment_that_cannot_be_made_says_why_in_one_line(tmp_path: Path) -> None:
    step = ("--no-index", "--find-links", str(tmp_path), "no-such-package-of-ours")
    environment = Environment(tmp_path / "env", (step,), print)
    with pytest.raises(EnvironmentMissingError) as error_info:
        environment.ensure()
    assert "no-such-package-of-ours" in str(error_info.value)
    assert "\n" not in str(error_info.value)


def test_mlserver_is_made_to_import(tmp_path: Path) -> None:
    patcher = tmp_path / "optimum/exporters/onnx/model_patcher.py"
    pipelines = tmp_path / "transformers/pipelines/__init__.py"
    for file, text in {
        patcher: "from torch.onnx.symbolic_opset14 import x\n",
        pipelines: "",
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    make_importable(tmp_path)
    moved = "torch.onnx._internal.torchscript_exporter.symbolic_opset14"
    assert patcher.read_text(encoding="utf-8") == f"from {moved} import x\n"
    namespace: dict[str, object] = {}
    exec(pipelines.read_text(encoding="utf-8"), namespace)
    assert isinstance(namespace["Conversation"], type)


def test_what_a_peer_writes_where_it_is_started_lands_beside_its_log(tmp_path: Path) -> None:
    writes = "from pathlib import Path; Path('.metrics').mkdir()"
    with running([sys.executable, "-c", writes], {}, tmp_path / "peer.log") as process:
        process.wait(20)
    assert (tmp_path / ".metrics").is_dir()


def test_a_program_of_an_environment_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = Environment(Path("peers"), (), lambda _: None)
    assert environment.program("uvicorn") == str(tmp_path / "peers" / "bin" / "uvicorn")
