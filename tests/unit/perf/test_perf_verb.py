"""``hf-triton perf`` itself: its sub-verbs, what it says of missing packages, what ends with it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from generator.errors import EXIT_INTERRUPTED
from hf_triton.cli import main as cli
from perf import verbs


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_every_sub_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["perf", verb, "--help"])
    assert caught.value.code == 0
    assert importlib.import_module(verbs.VERBS[verb]).HELP
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "missing, told",
    [
        ("matplotlib", "needs the Python package matplotlib: pip install 'PATH[perf]', "),
        ("torch.nn", "needs the Python package torch: pip install 'PATH[serve]', "),
    ],
)
def test_a_missing_package_is_one_clear_line(
    missing: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    module: ModuleType = importlib.import_module("perf.verbs.sweep")
    monkeypatch.setattr(module, "run", run)
    assert cli.main(["perf", "sweep"]) == 1
    path = "with the path of hf-triton's checkout or wheel"
    assert capsys.readouterr().err == f"hf-triton: hf-triton perf sweep {told}{path}\n"


def test_without_the_package_the_verb_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "perf.verbs", None)
    assert cli.main(["perf", "sweep", "--serve"]) == 1
    told = "perf is not installed; a checkout and hf-triton's wheel have it"
    assert capsys.readouterr().err == f"hf-triton: {told}\n"


@pytest.mark.parametrize(
    "words, told",
    [
        (["roofline", "m", "--sequences", "1,8"], "perf roofline is gone: `perf sweep` measures"),
        (
            ["report", "a", "--p99-ms", "5"],
            "perf report is gone: each measuring verb writes run.html",
        ),
    ],
)
def test_a_verb_that_is_gone_says_what_to_use(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["perf", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_program_ends_a_measurement_as_an_interrupt(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    module: ModuleType = importlib.import_module("perf.verbs.sweep")
    monkeypatch.setattr(module, "run", lambda _: signal.raise_signal(number))
    assert cli.main(["perf", "sweep"]) == EXIT_INTERRUPTED
    assert signal.getsignal(number) is before


def test_a_closed_terminal_does_not_end_what_nohup_started(monkeypatch: pytest.MonkeyPatch) -> None:
    module: ModuleType = importlib.import_module("perf.verbs.sweep")

    def run(_: object) -> int:
        signal.raise_signal(signal.SIGHUP)
        return 0

    monkeypatch.setattr(module, "run", run)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert cli.main(["perf", "sweep"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


PARENT = """\
import signal, subprocess, sys
from functools import partial
from generator.python_modules import end_with_parent
command = [sys.executable, "-c", "input()"]
end = partial(end_with_parent, signal.SIGKILL)
subprocess.Popen(command, preexec_fn=end, start_new_session=True)
print("up", flush=True)
signal.pause()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_what_a_killed_process_started_ends_with_it() -> None:
    root = str(Path(__file__).parents[3])
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": root},
        stdin=reading,
        stdout=subprocess.PIPE,
    ) as parent:
        os.close(reading)
        assert parent.stdout
        assert parent.stdout.readline() == b"up\n"
        parent.send_signal(signal.SIGKILL)
        # The child has the same standard output, which ends when it does; its input never does.
        assert parent.stdout.read() == b""
    os.close(writing)
