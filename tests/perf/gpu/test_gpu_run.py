"""A run's jobs as processes: what is kept when one fails, is cut off or is done already."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from generator import cli
from perf import machine
from perf.gpu.__main__ import main
from perf.gpu.jobs import JOBS, Job
from perf.gpu.run import Run

GOOD, BAD, ABORTS = Job("good", ("ok",)), Job("bad", ("bad",)), Job("aborts", ("abort",))
SCRIPTS = {
    "ok": "print('9 agree, 0 do not')",
    "bad": "print('BAD a kernel: difference 0.5'); print('later'); sys.exit(1)",
    "abort": "print('before', flush=True); os.abort()",
    "slow": "print('begun', flush=True); time.sleep(60)",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose jobs are small scripts."""
    monkeypatch.setattr(
        Run,
        "command_of",
        lambda _, job: [sys.executable, "-c", f"import os, sys, time; {SCRIPTS[job.words[0]]}"],
    )
    return Run("prove", tmp_path / "prove", 60.0, device="cpu")


def test_a_job_that_fails_stops_no_other_and_the_bad_is_told_last(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run.run([BAD, ABORTS, GOOD])
    assert run.ended["good"].startswith("done")
    assert run.ended["bad"].startswith("exit code 1")
    told = capsys.readouterr().out.partition("----")[2].splitlines()[1:]
    assert told[:2] == ["good: 9 agree, 0 do not", "bad: BAD a kernel: difference 0.5"]
    assert any(line.startswith("!! aborts: exit code -6, ") for line in told[2:])
    assert told[-1].startswith("1 of 3 jobs ended well")
    assert (run.folder / "aborts.log").read_text() == "before\n"


def test_a_job_is_cut_off_and_what_it_said_is_told(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run.run([Job("slow", ("slow",), limit_s=10.0)])
    assert "!! slow: cut off at 10 s, 1" in capsys.readouterr().out


def test_what_is_done_is_kept_until_the_code_changes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeated(*, again: bool = False) -> dict[str, str]:
        new = Run("prove", run.folder, 60.0, device="cpu", again=again)
        new.run([GOOD, BAD])
        return new.ended

    run.run([GOOD, BAD])
    kept = repeated()
    assert kept["good"].startswith("kept")
    assert kept["bad"].startswith("exit code 1"), "what failed runs again"
    assert repeated(again=True)["good"].startswith("done")
    monkeypatch.setattr("perf.machine.code", lambda: "other")
    assert repeated()["good"].startswith("done")


def test_what_needs_a_gpu_or_more_time_than_there_is_is_not_begun(run: Run) -> None:
    assert run.run([Job("sanitized", ("ok",), needs_gpu=True)])
    run.budget_s = 5.0
    assert not run.run([GOOD])
    assert run.ended == {
        "sanitized": "skipped: it needs a GPU",
        "good": "not begun: the budget is spent",
    }


def test_what_a_machine_lacks_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("import a_package_that_is_not_there")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["prove", str(tmp_path / "out")]
    for run_it, who in ((main, "perf/gpu"), (lambda w: cli.main(["perf", "gpu", *w]), "hf-triton")):
        assert run_it(words) == 1
        assert capsys.readouterr().err == (
            f"{who}: the engines can't be imported here: ModuleNotFoundError: No module named "
            "'a_package_that_is_not_there'; a package can come as a wheel: --wheels DIR\n"
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
    assert capsys.readouterr().err == "perf/gpu: --wheels gone: no folder\n"


def test_jobs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["race", "--list", "--only", "8b-ours|memory"]) == 0
    assert capsys.readouterr().out == (
        "8b-ours: at most 150 s: speed llama-8b --who ours,profile --clients 1,8,64,256\n"
        "memory: at most 60 s: speed llama-1b --who memory --clients 1,8,64,256\n"
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
