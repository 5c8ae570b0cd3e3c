"""A run's jobs as processes: what is kept when one fails, is cut off or is done already."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from perf import machine
from perf.lab.gpu.__main__ import main
from perf.lab.gpu.jobs import JOBS, Job
from perf.lab.gpu.run import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def script(name: str, code: str, **more: float) -> Job:
    """A job that is this code alone."""
    return Job(name, (), under=(sys.executable, "-c", f"import os, sys, time; {code}"), **more)  # type: ignore[arg-type]


GOOD = script("good", "print('9 agree, 0 do not')")
BAD = script("bad", "print('BAD a kernel: difference 0.5'); print('later'); sys.exit(1)")
ABORTS = script("aborts", "print('before', flush=True); os.abort()")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run("prove", tmp_path / "prove", 60.0, "cpu")


def test_a_job_that_fails_stops_no_other_and_the_bad_is_told_last(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Job("gone", (), under=("no-such-sanitizer",))
    assert not run.run([BAD, ABORTS, gone, GOOD])
    assert run.ended["good"].startswith("done")
    assert run.ended["bad"].startswith("exit code 1")
    told = capsys.readouterr().out.partition("----")[2].splitlines()[1:]
    assert {"good: 9 agree, 0 do not", "bad: BAD a kernel: difference 0.5"} <= set(told[:3])
    assert any(line.startswith("!! aborts: exit code -6, ") for line in told)
    assert any("FileNotFoundError: [Errno 2] No such file or directory" in line for line in told)
    assert told[-1].startswith("1 of 4 jobs ended well")
    assert (run.folder / "aborts.log").read_text() == "before\n"


def test_a_job_is_cut_off_and_what_it_said_is_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run.run([script("slow", "print('begun', flush=True); time.sleep(60)", limit_s=10.0)])
    assert "!! slow: cut off at 10 s, 10 s | begun" in capsys.readouterr().out


def test_what_is_done_is_kept_and_told_until_the_code_changes(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def repeated() -> dict[str, str]:
        new = Run("prove", run.folder, 60.0, "cpu")
        new.run([GOOD, BAD])
        return new.ended

    run.run([GOOD, BAD])
    capsys.readouterr()
    kept = repeated()
    assert kept["good"].startswith("kept")
    assert "good: 9 agree, 0 do not" in capsys.readouterr().out
    assert kept["bad"].startswith("exit code 1"), "what failed runs again"
    monkeypatch.setattr("perf.machine.code", lambda: "other")
    assert repeated()["good"].startswith("done")


def test_what_needs_a_gpu_or_more_time_than_there_is_is_not_begun(run: Run) -> None:
    assert run.run([Job("sanitized", (), needs_gpu=True)])
    run.budget_s = 5.0
    assert not run.run([GOOD])
    assert run.ended == {
        "sanitized": "skipped: it needs a GPU",
        "good": "not begun: the budget is spent",
    }


@pytest.mark.parametrize("device, is_forked", [("cpu", True), ("cuda:0", False)])
def test_what_cannot_use_a_gpu_in_a_fork_gets_a_python_of_its_own(
    device: str, is_forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a package has asked CUDA itself whether there is a GPU."""
    monkeypatch.setattr("torch.cuda._is_in_bad_fork", lambda: True)
    monkeypatch.setattr("perf.lab.gpu.told.work", lambda *_: 7)
    monkeypatch.setattr("os.execvp", lambda *_: 8)
    run = Run("prove", tmp_path, 60.0, device)
    run.run([Job("sampling", ("agree.sampling",))])
    assert run.ended["sampling"].startswith(f"exit code {7 if is_forked else 8}")


def test_what_a_machine_lacks_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("import a_package_that_is_not_there")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["prove", str(tmp_path / "out")]
    for run_it in (main, lambda words: cli.main(["perf", "gpu", *words])):
        assert run_it(words) == 1
        # gRPC, which other tests have imported, may have told of a fork before.
        assert capfd.readouterr().err.splitlines()[-1] == (
            "hf-triton perf gpu: the engines can't be imported here: ModuleNotFoundError: No "
            "module named 'a_package_that_is_not_there'; a package can come as a wheel: "
            "--wheels DIR"
        )


@pytest.mark.parametrize(
    "words, said",
    [
        (["prov"], "invalid choice: 'prov'"),
        (["--budget-s", "0"], "got '0', expected a number above 0"),
        (["--only", "("], "got '(', no regular expression"),
    ],
)
def test_mistakes_on_the_command_line_are_told(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["perf", "gpu", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_wheels_that_are_not_there_end_the_run_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--wheels", "gone"]) == 1
    assert capsys.readouterr().err == "perf/lab/gpu: --wheels gone: no folder\n"


def test_jobs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", "--list", "--only", "8b ours|memory"]) == 0
    assert capsys.readouterr().out == (
        "llama-8b ours: at most 150 s: speed.loops llama-8b ours,profile 1,8,64,256\n"
        "llama-1b memory: at most 60 s: speed.loops llama-1b memory 1,8,64,256\n"
    )
    names = [job.name for jobs in JOBS.values() for job in jobs]
    assert len(names) == len(set(names))


def test_of_two_versions_on_the_path_the_one_that_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, number in (("first", "9.1"), ("second", "9.2")):
        info = tmp_path / folder / f"transformers-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: transformers\nVersion: {number}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    assert machine.versions()["transformers"] == "9.1"
