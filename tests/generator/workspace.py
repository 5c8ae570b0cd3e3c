"""A folder to run hf-triton in, with a task that exists only in tests."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
REAL_TEMPLATES = HERE.parent.parent / "model_templates"
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
    for name in ("ensemble", "vllm_backend"):
        shutil.copytree(REAL_TEMPLATES / name, target / name)
    return target


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, hidden ones included."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def broken_cases() -> list[str]:
    return sorted(path.stem for path in BROKEN.glob("*.yaml"))


def golden_cases() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.yaml"))
