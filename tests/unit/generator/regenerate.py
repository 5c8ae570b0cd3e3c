"""Rewrites the expected texts beside the YAMLs, and the tables of docs/models-yaml.md:
``python -m tests.unit.generator.regenerate``.

Read the difference before committing it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from generator.models_yaml.server_settings import ServerSettings
from generator.render.manifest import MANIFEST_FILE
from generator.spec.model_spec import ModelKeys
from generator.spec.triton_models import LAUNCHER_FILE
from hf_triton.cli import main as cli
from tests.support.own_tasks import use_tasks
from tests.support.text_sections import tree_text
from tests.support.triton import ROOT
from tests.unit.generator import workspace

PAGE = ROOT / "docs" / "models-yaml.md"
_DIGEST = re.compile('"[0-9a-f]{64}"')


def main() -> None:
    PAGE.write_text(documented(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        folder = workspace.make_templates(Path(scratch) / "templates")
        use_tasks(folder)
        os.chdir(scratch)
        for file in workspace.BROKEN.iterdir():
            cases = workspace.read_broken(file)
            new = [case._replace(says=report_of(case.text, Path(scratch))) for case in cases]
            workspace.write_broken(file, new)
        text = tree_text(rendered_golden(Path(scratch)))
        (workspace.GOLDEN / "every_key.txt").write_text(text, encoding="utf-8")


def documented(page: str) -> str:
    """The page of models.yaml with its tables as the code has them."""
    tables = {"## Keys of a model": ModelKeys, "## Settings of the server": ServerSettings}
    for heading, kind in tables.items():
        before, after = page.split(f"{heading}\n", 1)
        text, rest = after.split("\n| ", 1)
        page = f"{before}{heading}\n{text}\n{table(kind)}\n\n{rest.split(chr(10) * 2, 1)[1]}"
    return page


def table(kind: type[Any]) -> str:
    rows = ["| key | default | |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        shown = field.metadata["shown"]
        default = _word(field.default) if shown is None else shown
        cell = f" {default} " if default else " "
        rows.append(f"| `{field.name}` |{cell}| {field.metadata['about']} |")
    return "\n".join(rows)


def _word(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, str):
        return f"`{default}`" if default else ""
    return str(default).lower()


def rendered_golden(work: Path) -> dict[str, str]:
    """The files that ``generate`` makes of golden/every_key.yaml, but for manifests and digests,
    and for code, which is copied. ``work`` is the current folder.
    """
    shutil.copytree(workspace.GOLDEN, work / "golden", dirs_exist_ok=True)
    config = str(work / "golden" / "every_key.yaml")
    assert cli.main(["generate", "--config", config, "--repository", "golden/every_key"]) == 0
    return {
        path: _DIGEST.sub('"..."', content.decode())
        for path, content in workspace.snapshot(work / "golden" / "every_key").items()
        if not path.endswith((".py", LAUNCHER_FILE, MANIFEST_FILE))
    }


def report_of(models_yaml: str, work: Path) -> str:
    """The mistakes that ``validate`` names in a YAML beside a hooks.py, with the folder's own path
    left out.
    """
    (work / "models.yaml").write_text(models_yaml, encoding="utf-8")
    (work / "hooks.py").write_text("def preprocess(request): pass\n", encoding="utf-8")
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        code = cli.main(["validate"])
    head, _, mistakes = stderr.getvalue().partition("\n")
    number = mistakes.count("\n")
    told = f"{number} mistake{'s' * (number > 1)} in models.yaml"
    assert (code, head) == (1, f"hf-triton: {told}")
    above = str(work.resolve().parent)
    return mistakes.replace(str(work.resolve()), "{work}").replace(f"{above}/", "{above}/")


if __name__ == "__main__":
    main()
