"""A run's sections as processes: what is kept when one fails, is cut off or is interrupted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from generator import cli
from perf import machine
from perf.gpu.__main__ import main
from perf.gpu.plan import SECTIONS, Section, chosen
from perf.gpu.report import cell, one_line, summary, to_markdown
from perf.gpu.results import Context, Figure, Measured, Results, Target, counted
from perf.gpu.run import NoDeviceError, Run, supervised
from perf.gpu.sections.machine import why_no_gpu

FIGURE = {"table": "t", "row": {"a": 1}, "target": None}
MACHINE = "{'device_name': 'fake', 'device': 'fake', 'why': 'none here', 'numpy': '2.5.2'}"


def child(
    name: str, path: Path, row: str = "{'a': 1}", state: str = "", then: str = ""
) -> list[str]:
    """A section that writes a figure and how it ended, if it says so."""
    code = f"""
import os, sys, time
from pathlib import Path
from perf.gpu.results import Context, Figure, Results
path = Path({str(path)!r})
results = Results.read(path)
results.sections[{name!r}].figures = [Figure("t", {row})]
results.sections[{name!r}].state = {state!r} or results.sections[{name!r}].state
results.write(path)
{then}"""
    return [sys.executable, "-c", code]


@pytest.mark.slow
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


def test_a_section_that_takes_too_long_is_cut_off() -> None:
    ended = supervised([sys.executable, "-c", "import time; time.sleep(600)"], 1.0)
    assert ended == "cut off: it took longer than 1 s"


def test_what_a_machine_lacks_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "transformers.py").write_text("import httpx_that_is_not_there")
    run = Run("fake", 0, tmp_path / "gpu", tmp_path, 600.0, "hf-triton perf gpu", "now")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(NoDeviceError) as raised:
            run.prepare([], None)
    assert str(raised.value) == (
        "transformers can't be imported: No module named 'httpx_that_is_not_there'; a missing "
        "package can come as a wheel: --wheels DIR"
    )


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose sections are small scripts."""
    run = Run("fake", 0, tmp_path / "gpu", tmp_path, 600.0, "hf-triton perf gpu", "now")
    children: dict[str, dict[str, str]] = {
        "ceilings": {"state": "done"},
        "encoder": {"then": "os.abort()"},
        "memory": {"state": "skipped: no room"},
        "machine": {"state": "done", "row": MACHINE},
    }
    monkeypatch.setattr(
        Run, "_command", lambda self, name, path: child(name, path, **children[name])
    )
    return run


def sections(*names: str) -> list[Section]:
    return [SECTIONS[name] for name in names]


def test_a_section_that_fails_does_not_stop_the_others(run: Run) -> None:
    run.prepare([], None)
    assert not run.measure(sections("encoder", "memory", "ceilings"))
    kept = json.loads(run.path.read_text())["sections"]
    assert kept["encoder"]["state"].startswith("failed: its process ended: killed by SIGABRT")
    assert kept["encoder"]["figures"] == [FIGURE]
    assert kept["memory"]["state"] == "skipped: no room"
    assert kept["ceilings"]["state"] == "done"
    assert run.measure(sections("ceilings", "memory")), "skipped, with the reason, is no failure"


@pytest.mark.slow
def test_what_was_finished_is_kept_until_something_it_was_measured_with_changes(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def states(created: str, again: bool = False) -> list[str]:
        run.created, run.again = created, again
        run.prepare([], None)
        run.measure(sections("ceilings", "encoder"))
        return [one.created for one in run.results.sections.values()]

    assert states("first") == ["first", "first"]
    assert states("second") == ["first", "second"], "what failed is measured again"
    assert "ceilings: kept, of first" in capsys.readouterr().err
    assert states("third", again=True) == ["third", "third"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf.machine.code", lambda: "other")
        assert states("fourth") == ["fourth", "fourth"]


def test_sections_of_an_earlier_run_stay_in_the_results(run: Run) -> None:
    run.prepare([], None)
    run.measure(sections("ceilings"))
    run.prepare([], None)
    run.measure(sections("memory"))
    assert list(run.results.sections) == ["ceilings", "memory"]
    assert (
        "## memory and matrix products (ceilings)" in (run.output.with_name("gpu.md")).read_text()
    )


def test_a_spent_budget_begins_no_section(run: Run) -> None:
    run.budget_s = 5.0
    run.prepare([], None)
    assert not run.measure(sections("ceilings"))
    assert run.results.sections["ceilings"].state.startswith("not begun: ")


def test_serving_needs_numpy_1_and_a_server(run: Run) -> None:
    run.prepare([], None)
    run.found["missing_for_serving"] = ""
    run.has_server = False
    assert run._cannot(SECTIONS["server-1b"]) == (
        "skipped: no tritonserver here: put nvidia-pytriton's wheel in --wheels DIR"
    )
    run.has_server = True
    assert "can't work with numpy 2.5.2: put a wheel of numpy 1.26" in run._cannot(
        SECTIONS["server-1b"]
    )
    run.found["missing_for_serving"] = "jinja2"
    assert "these can't be imported: jinja2" in run._cannot(SECTIONS["server-1b"])


def test_other_json_is_not_written_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text('{"levels": []}')
    with pytest.raises(ValueError, match=r"gpu\.json holds no results of perf gpu"):
        run.prepare([], None)


def test_the_report_has_targets_beside_their_figures(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    results = Results(1, {"cpu": "x"}, {"python": "3"})
    row: dict[str, Any] = {"sequences": 1, "tokens_per_s": 1234.5, "limit_share": 0.715}
    target = Target("at least 70% of the limit", 0.715, 0.70)
    missed = Target("at least 20 times", 19.0, 20.0)
    figures = [Figure("decoding", row, target), Figure("ratio", {"times": 19.0}, missed)]
    device = {"device": "H200"}
    results.sections["tokens-8b"] = Measured("done", "now", "c", "abc", device, 1.0, figures)
    results.write(path)
    text = to_markdown(results)
    assert "| sequences | tokens/s | of the limit | target |" in text
    assert "| 1 | 1,234 | 72% | at least 70% of the limit: met |" in text
    assert "| 19.0 | at least 20 times: not met |" in text
    assert list(summary(results, ["tokens-8b"])) == [
        "tokens-8b: at least 70% of the limit: met (0.71)",
        "tokens-8b: at least 20 times: not met (19.0)",
    ]
    assert json.loads(path.read_text())["sections"]["tokens-8b"]["figures"][0]["target"]["met"]
    assert one_line("s", figures[0]).startswith("s: decoding: sequences 1, tokens/s 1,234, of")
    assert cell("x", None) == "-"
    assert "fake" not in text


def test_a_fake_gpu_has_no_times_and_says_so(tmp_path: Path) -> None:
    figures: list[Figure] = []
    context = Context("cpu", True, "tiny", tmp_path, 0, lambda one: figures.append(counted(one)))
    context.emit("t", {"kernels": 9, "step_ms": 1.5}, Target("fast", 1.0, 2.0))
    context.emit("t", {"agrees": False}, Target("agrees", 0.0, 1.0, is_exact=True))
    assert figures[0] == Figure("t", {"kernels": 9, "step_ms": None})
    fake = {"device": "fake", "why": "no driver"}
    measured = Measured("done", "now", "c", "abc", fake, 1.0, figures)
    assert measured.is_bad, "what is compared counts on a fake GPU too"
    text = to_markdown(Results(1, {}, {}, {"ceilings": measured}))
    assert text.startswith("# On a GPU\n\n**On a fake GPU (no driver): models are tiny")
    assert "| 9 | - |" in text


def test_large_sections_run_where_they_are_asked_for() -> None:
    assert "server-8b" not in [each.name for each in chosen(None, large=False)]
    assert chosen(None, large=True) == list(SECTIONS.values())
    assert chosen(("server-8b",), large=False) == [SECTIONS["server-8b"]]


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--sections", "decode"], "got 'decode', expected some of"),
        (["--budget-s", "0"], "got '0', expected a number above 0"),
    ],
)
def test_mistakes_on_the_command_line_are_told(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for run_it in (main, lambda words: cli.main(["perf", "gpu", *words])):
        with pytest.raises(SystemExit) as ended:
            run_it(argv)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_wheels_that_are_not_there_end_the_run_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--work-dir", str(tmp_path), "--output", str(tmp_path / "o"), "--wheels", "gone"]
    assert main(words) == 1
    assert capsys.readouterr().err == "perf/gpu: --wheels gone: no such folder\n"
    assert cli.main(["perf", "gpu", *words]) == 1
    assert capsys.readouterr().err == "hf-triton: --wheels gone: no such folder\n"
    assert not list(tmp_path.glob("perf-gpu-*"))


class FakeTorch:
    """A torch that says what its cuda does."""

    __version__ = "2.13.0"

    def __init__(self, cuda: str | None, error: str = "") -> None:
        self.version, self.cuda = type("V", (), {"cuda": cuda}), self
        self._error = error

    def init(self) -> None:
        if self._error:
            raise RuntimeError(self._error)


OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version from the URL: http://www. Alternatively,"
)


@pytest.mark.parametrize(
    "fake, said",
    [
        (FakeTorch(None), "torch 2.13.0 is built without CUDA"),
        (FakeTorch("13.0"), "torch sees no GPU"),
        (FakeTorch("13.0", OLD), "system is too old (found version 11040). Please update your GPU"),
    ],
)
def test_why_there_is_no_gpu_is_one_line(fake: FakeTorch, said: str) -> None:
    told = why_no_gpu(fake)
    assert said in told
    assert "\n" not in told


@pytest.mark.slow
def test_the_verb_runs_on_a_fake_gpu_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "fake", "--output", str(tmp_path / "gpu"), "--work-dir", str(tmp_path)]
    assert cli.main(["perf", "gpu", *words, "--sections", "ceilings"]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("On a fake GPU (asked for): models are tiny")
    assert told.out == (tmp_path / "gpu.md").read_text()
    assert "| copy | - |" in told.out
    assert main([*words, "--sections", "ceilings,vllm-1b"]) == 0
    told = capsys.readouterr()
    assert "ceilings: kept, of " in told.err
    assert "**skipped: no vLLM in this Python" in told.out


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_its_ceilings_measured(tmp_path: Path) -> None:
    words = ["--sections", "ceilings", "--output", str(tmp_path / "gpu")]
    assert main([*words, "--work-dir", str(tmp_path), "--device", "cuda"]) == 0
