"""A folder to run hf-triton in, with a task that exists only in tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.text_sections import read_sections, write_sections

HERE = Path(__file__).resolve().parent
REAL_TEMPLATES = HERE.parents[2] / "model_templates"
BROKEN = HERE / "broken"
GOLDEN = HERE / "golden"

ONE_MODEL = """\
models:
  - name: demo
    task: fake-task
    model: org/name
"""


ONE_STREAMING_MODEL = ONE_MODEL.replace("fake-task", "fake-stream")


def make_templates(target: Path) -> Path:
    """The fake tasks, with the macros and the layouts' configs that real tasks use."""
    shutil.copytree(
        HERE / "fake_templates", target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    shutil.copy(REAL_TEMPLATES / "_macros.pbtxt.j2", target)
    shutil.copytree(REAL_TEMPLATES / "ensemble", target / "ensemble")
    return target


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, hidden ones included."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class BrokenYaml(NamedTuple):
    """A models.yaml with mistakes, and what ``validate`` says of it."""

    name: str
    text: str
    says: str


def read_broken(file: Path) -> list[BrokenYaml]:
    """The cases of a file: each a line ``=== name``, its YAML, a line ``=== says``, its report."""
    parts = read_sections(file)
    pairs = zip(parts[0::2], parts[1::2], strict=True)
    return [BrokenYaml(name, text, says) for (name, text), (_, says) in pairs]


def write_broken(file: Path, cases: Iterable[BrokenYaml]) -> None:
    """The inverse of ``read_broken``."""
    write_sections(
        file, [part for case in cases for part in ((case.name, case.text), ("says", case.says))]
    )


def broken_cases() -> dict[str, BrokenYaml]:
    """Every case of every file, by its name."""
    return {case.name: case for file in sorted(BROKEN.iterdir()) for case in read_broken(file)}
