"""A folder with a models.yaml, its lock and its repository, and the command line run in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hf_triton.cli import main as cli
from hf_triton.runtime.weights.model_files import model_files
from hf_triton.runtime.weights.served_model import ServedModel, read_served_model

TASK = "feature-extraction"


class Ran(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str


@dataclass
class Workplace:
    """``folder`` is the current one."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def write(self, *names: str, **keys: object) -> None:
        """A models.yaml with these models, each org/tiny, all with the same further keys."""
        entries = [{"name": name, "task": TASK, "model": "org/tiny", **keys} for name in names]
        self.write_models(entries)

    def write_models(self, entries: Sequence[Mapping[str, object]]) -> None:
        """A models.yaml with these entries; JSON is YAML too."""
        (self.folder / "models.yaml").write_text(json.dumps({"models": entries}, indent=1))

    def run(self, *arguments: str) -> Ran:
        """The command line, in this process."""
        code = cli.main(arguments)
        return Ran(code, *self.capsys.readouterr())

    def fetch(self, *arguments: str) -> Ran:
        """A fetch that has to succeed."""
        ran = self.run("fetch", *arguments)
        assert ran.code == 0, ran
        return ran

    def refused(self, *arguments: str) -> str:
        """The error of a command that has to fail, after the lines of its progress."""
        ran = self.run(*arguments)
        assert ran.code == 1, ran
        assert "Traceback" not in ran.err
        return ran.err[ran.err.index("hf-triton: ") :]

    @property
    def lock(self) -> dict[str, Any]:
        """models.lock, parsed."""
        value: dict[str, Any] = json.loads((self.folder / "models.lock").read_text())
        return value

    def cache(self, name: str = "tiny") -> Path:
        """A model's cache."""
        return self.folder / "model_repository" / name / "hf_cache"

    def snapshots(self, name: str = "tiny") -> list[Path]:
        """The snapshots in it, of whichever source."""
        return sorted(self.cache(name).glob("models--*/snapshots/*"))

    def files(self, name: str = "tiny") -> dict[str, bytes]:
        """The files of its only snapshot."""
        (folder,) = self.snapshots(name)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }

    def served(self, name: str = "tiny") -> ServedModel:
        """The model as the server reads it, once it is generated."""
        assert self.run("generate").code == 0
        return read_served_model(self.folder / "model_repository" / name, "1")

    def loaded(self, name: str = "tiny") -> Path:
        """The folder that the server loads the model from. Raises LoadError."""
        return model_files(self.served(name))
