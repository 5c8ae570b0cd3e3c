"""Rewrites the expected texts and trees beside the YAMLs: ``python -m tests.generator.regenerate``.

Read the difference before committing it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from pathlib import Path

from generator import cli
from generator.spec import task_folders
from tests.generator import workspace


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = workspace.make_templates(Path(scratch) / "templates")
        task_folders.default_directory = lambda: folder
        os.chdir(scratch)
        for file in workspace.BROKEN.iterdir():
            cases = workspace.read_broken(file)
            new = [case._replace(says=report_of(case.text, Path(scratch))) for case in cases]
            workspace.write_broken(file, new)
        for case in workspace.golden_cases():
            target = workspace.GOLDEN / case
            shutil.rmtree(target, ignore_errors=True)
            config = str(workspace.GOLDEN / f"{case}.yaml")
            cli.main(["generate", "--config", config, "--repository", str(target)])
            for source in target.rglob("*.py"):  # copies; the manifest holds their hashes
                source.unlink()


def report_of(models_yaml: str, work: Path) -> str:
    """What ``validate`` says of a broken YAML, with the folder's own path left out."""
    (work / "models.yaml").write_text(models_yaml, encoding="utf-8")
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        code = cli.main(["validate"])
    above = str(work.resolve().parent)
    text = stderr.getvalue().replace(str(work.resolve()), "{work}").replace(f"{above}/", "{above}/")
    return f"exit code {code}\n{text}"


if __name__ == "__main__":
    main()
