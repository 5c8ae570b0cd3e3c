"""Rewrites golden/: ``python -m tests.unit.deploy.regenerate``. Read what changed."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from hf_triton.cli import main as cli
from tests.support.text_sections import tree_text
from tests.unit.deploy.workspace import GOLDEN, read_folder, write_workspace

# The dashboard and the rules are long, the same everywhere, and tested by themselves.
LEFT_OUT = (
    *("dashboard.json", "hf-triton.json", "rules.yaml", "prometheusrule.yaml"),
    "prometheus.yaml",
)
CASES: dict[str, tuple[str, ...]] = {
    "compose": ("compose", "--openai"),
    "kubernetes": ("kubernetes", "--openai", "--host", "models.example.org"),
    "kserve": ("kserve", "--max-replicas", "8"),
}


def main() -> None:
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(golden(case), encoding="utf-8")


def golden(case: str) -> str:
    """The expected text; for kserve, its differences from kubernetes."""
    if case != "kserve":
        return tree_text(rendered(case))
    base = rendered("kubernetes")
    # Its pod stands two spaces further to the left than a Deployment's.
    pod = re.sub("^  ", "", base["deployment.yaml"], flags=re.MULTILINE)
    return tree_text(rendered(case), {**base, "deployment, outdented/inferenceservice.yaml": pod})


@cache
def rendered(case: str) -> dict[str, str]:
    """The files that ``deploy`` writes, but for LEFT_OUT."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        write_workspace(Path(scratch))
        os.chdir(scratch)  # contextlib.chdir is not in Python 3.10
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                assert cli.main(["deploy", *CASES[case], "--output", "out"]) == 0
        finally:
            os.chdir(before)
        found = read_folder(Path(scratch, "out"))
    return {path: text for path, text in found.items() if Path(path).name not in LEFT_OUT}


if __name__ == "__main__":
    main()
