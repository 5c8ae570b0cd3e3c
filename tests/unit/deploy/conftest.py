"""Runs ``hf-triton deploy`` in a folder of its own, with models that exist only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_triton.cli import main as cli
from tests.unit.deploy.workspace import Rendered, read_folder, write_workspace

Deploy = Callable[..., Rendered]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with models.yaml and what it names."""
    write_workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def deploy(work: Path, capsys: pytest.CaptureFixture[str]) -> Deploy:
    """Runs ``deploy TARGET FLAGS --output out``; an exit code other than 0 comes back as it is."""

    def run(*arguments: str) -> Rendered:
        try:
            code = cli.main(["deploy", *arguments, "--output", "out"])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        said = capsys.readouterr()
        return Rendered(code, said.out, said.err, read_folder(work / "out"))

    return run
