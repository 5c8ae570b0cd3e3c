"""The command line itself: exit codes, help, what goes where."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from generator.models_yaml import reading
from generator.repository import plan
from hf_triton.cli import main as cli
from tests.unit.generator.conftest import Run
from tests.unit.generator.workspace import ONE_MODEL, ONE_STREAMING_MODEL


@pytest.mark.parametrize(
    "text, says",
    [
        (ONE_MODEL, "1 model"),
        (
            ONE_STREAMING_MODEL + "  - {name: b, task: fake-task, model: o/n}\n",
            "2 models (1 streaming)",
        ),
    ],
)
def test_validate_says_what_it_read(text: str, says: str, work: Path, run: Run) -> None:
    (work / "models.yaml").write_text(text)
    assert run("validate") == (0, f"models.yaml: {says}, no mistakes\n", "")
    assert [path.name for path in work.iterdir()] == ["models.yaml"]


@pytest.mark.parametrize(
    "arguments, near",
    [
        ([], "the following arguments are required: VERB"),
        (["bake"], "argument VERB: invalid choice: 'bake'"),
        (["diff", "--config", ""], "argument --config: got '', expected a path"),
        (["generate", "--repository", "a\0b"], "argument --repository: got 'a\\x00b', expected"),
        (["serve", "--http-prot", "8000"], "--http-prot; did you mean --http-port?"),
        (["validate", "--confg=x"], "--confg=x; did you mean --config?"),
        (["perf", "sweep", "--ulr", "x"], "--ulr; did you mean --url?"),
        (["apply", "--url=x:1"], "--url is gone: run apply where the server runs"),
        (["apply", "--grpc-port", "1"], "--grpc-port is gone: run apply where the server runs"),
        (
            ["perf", "tune", "demo", "--model-analyzer", "f.yaml"],
            "--model-analyzer is gone: leave it out ",
        ),
        (["perf", "tune", "demo", "--minutes", "5"], "--minutes is gone: --trials bounds a search"),
        (
            ["perf", "sweep", "--sdk-image", "i"],
            "--sdk-image is gone: --dry-run prints the commands",
        ),
        (["perf", "compare", "a", "b", "--html"], "--html is gone: the Markdown has all of it"),
        (["diff", "x"], "unrecognized arguments: x\n"),
        (["serve", "--http-port=0"], "expected a port from 1 to 65535"),
        (["serve", "--drain-s=-1"], "expected a number, 0 or more"),
        (["diff", "--qqq"], "unrecognized arguments: --qqq\n"),
        (["serve", "--triton-url", "localhost:8001"], "--triton-url is gone: run serve"),
        (["serve", "--openai-key-file", "x"], "use --api-keys-file, whose keys every port takes"),
        (["serve", "--openai-media-hosts", "a.b"], "--openai-media-hosts needs --openai-port"),
        (["serve", "--openai-port", "0"], "expected a port"),
        (["serve", "--openai-cors=a"], "use cors in the server: block of models.yaml"),
        (["optimize"], "MODEL"),
        (["optimize", "demo", "--engines", "tf"], "got 'tf', expected some of torch, onnxruntime"),
        (["optimize", "demo", "--engines", ","], "expected some of torch, onnxruntime"),
        (["optimize", "demo", "--lengths", "16,x"], "got '16,x', expected whole numbers such as"),
        (["optimize", "demo", "--batch-sizes", "0"], "got '0', expected whole numbers"),
        (["optimize", "demo", "--seconds", "-1"], "got '-1', expected a number above 0"),
        (["optimize", "demo", "--tolerance", "nan"], "got 'nan', expected a number above 0"),
    ],
)
def test_a_wrong_option_is_told_with_what_is_right(
    arguments: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert (code, near in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([verb, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--config FILE" in out
    assert "--repository FOLDER" in out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"hf-triton {version('hf-triton')}\n"


@pytest.mark.parametrize(
    "arguments, unneeded",
    [
        ("--help", "yaml jinja2 google"),
        ("validate", "grpc numpy hf_triton.cli.verbs.serve"),
        ("serve --help", "grpc numpy psutil uvloop hf_triton.serving.supervision"),
        ("apply --help", "grpc psutil yaml hf_triton.serving.apply"),
        ("perf --help", "aiohttp uvloop matplotlib"),
    ],
)
def test_a_verb_imports_what_it_needs_alone(work: Path, arguments: str, unneeded: str) -> None:
    (work / "models.yaml").write_text(ONE_MODEL.replace("fake-task", "feature-extraction"))
    code = "import atexit, sys; from hf_triton.cli.main import main; atexit.register(lambda: print"
    code += f"(sys.modules.keys() & {unneeded.split()})); sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()")


INTERRUPTED = """
import runpy, sys

interrupted = sys.argv.pop(1)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
runpy.run_module("hf_triton.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["argparse", "hf_triton.cli.verbs.serve", "yaml"])
def test_an_interrupt_while_modules_are_imported_is_one_line(work: Path, module: str) -> None:
    (work / "models.yaml").write_text(ONE_MODEL.replace("fake-task", "feature-extraction"))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "serve"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "hf-triton: interrupted\n")


def test_the_help_teaches_with_an_example_that_is_right(
    work: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    start, end = out.index("  models:"), out.index("  hf-triton validate")
    (work / "models.yaml").write_text(out[start:end].replace("text-generation", "fake-task"))
    assert run("validate")[0] == 0


def test_a_bug_of_ours_ends_in_3_with_a_traceback(
    work: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(reading, "refuse_clashes", broken)
    (work / "models.yaml").write_text(ONE_MODEL)
    code, _, err = run("validate")
    assert code == 3
    assert "ZeroDivisionError" in err
    assert err.endswith("hf-triton: this is a bug in hf-triton; please report it\n")


def test_tasks_lists_units_ranges_and_defaults(work: Path, run: Run) -> None:
    assert (
        run("tasks")[1]
        == """\
fake-stream (streams unless 'streaming: false')
  limit: whole number, at least 1, tokens (default 8)
      a limit

fake-task
  engine: fast | slow (default fast)
      which engine
  limit: whole number, 1 to 1024, tokens (default null)
      a limit
  rate: number, above 0 (default 0.5)
      a rate
  flag: true | false (default false)
      a flag
  label: text (default x)
      a label
"""
    )


def test_a_reader_that_leaves_early_is_no_traceback(work: Path) -> None:
    command = f"{sys.executable} -m hf_triton.cli tasks | true"
    home = Path(cli.__file__).parent.parent
    result = subprocess.run(
        ["bash", "-c", command], cwd=home, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FIRST_AFTER_S", 0)
    assert list(plan.track([1, 2], "writing")) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(plan.track([1, 2], "writing")) == [1, 2]
    assert "writing" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("output, code", [(">&-", 0), (">/dev/full", 1)])
def test_an_output_that_takes_nothing_is_no_bug(work: Path, output: str, code: int) -> None:
    (work / "models.yaml").write_text(ONE_MODEL.replace("fake-task", "feature-extraction"))
    command = f"{sys.executable} -m hf_triton.cli validate {output}"
    root = Path(cli.__file__).parents[1]
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "bug" in done.stderr) == (code, False)
    assert ("No space left on device" in done.stderr) == bool(code)


def test_a_folder_that_can_only_be_read_stays_where_a_local_file_has_another_time(
    work: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "weights").mkdir()
    weights = work / "weights" / "model.safetensors"
    weights.touch()
    text = "models:\n- {name: a, task: fake-task, model: ./weights}\n"
    (work / "models.yaml").write_text(text)
    assert run("generate")[0] == 0
    os.utime(weights, (2e9, 2e9))
    config = work / "model_repository" / "a" / "config.pbtxt"
    before = config.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        assert run("generate")[0] == 0
        assert config.read_bytes() == before
    assert run("generate")[0] == 0
    assert config.read_bytes() != before


@pytest.mark.parametrize(
    "name, message",
    [
        ("dmo", "models.yaml has no model 'dmo'; did you mean 'demo'?\n"),
        ("demo", "model 'demo' is of the task fake-task, which has no engines to compare"),
    ],
)
def test_a_model_that_is_not_there_or_has_no_engines_can_not_be_optimized(
    name: str, message: str, work: Path, run: Run
) -> None:
    (work / "models.yaml").write_text(ONE_MODEL)
    code, out, err = run("optimize", name)
    assert (code, out) == (1, "")
    assert err.startswith(f"hf-triton: {message}")
    assert [path.name for path in work.iterdir()] == ["models.yaml"]


def test_keys_of_callers_that_can_not_be_read_are_told(run: Run) -> None:
    code, _, err = run("serve", "--api-keys-file=none")
    assert (code, "can't be read: No such file" in err) == (1, True)
