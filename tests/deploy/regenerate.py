"""Rewrites golden/: ``python -m tests.deploy.regenerate``. Read what changed before committing."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from hf_triton.cli import main as cli
from tests.deploy.workspace import GOLDEN, read_folder, write_lock, write_workspace
from tests.support.text_sections import tree_text

# The dashboard and the rules are long, the same everywhere, and tested by themselves.
LEFT_OUT = ("dashboard.json", "hf-triton.json", "rules.yaml", "prometheusrule.yaml")
# The third of three servers: its numbers are held by test_kubernetes.
ALIKE = "hf-triton-picture"
CASES: dict[str, tuple[str, ...]] = {
    "compose": ("compose", "--openai"),
    "compose-local": ("compose", "--config", "local.yaml", "--device", "cpu"),
    "kubernetes": ("kubernetes", "--openai", "--host", "models.example.org", "--network-policy"),
    "kubernetes-per-model": (
        *("kubernetes", "--per-model", "--shared-claim", "--namespace", "models"),
        *("--monitoring", "operator"),
    ),
    "kserve": ("kserve", "--max-replicas", "8"),
}
BASES = {
    "compose-local": "compose",
    "kubernetes-per-model": "kubernetes",
    "kserve": "kubernetes",
}


def main() -> None:
    for case in CASES:
        (GOLDEN / f"{case}.txt").write_text(golden(case), encoding="utf-8")


def golden(case: str) -> str:
    """What is expected; of a case with a base, what differs from that."""
    base = rendered(BASES[case]) if case in BASES else {}
    if case == "kserve":  # whose pod stands two spaces further to the left than a Deployment's
        pod = re.sub("^  ", "", base["deployment.yaml"], flags=re.MULTILINE)
        base = {**base, "deployment, outdented/inferenceservice.yaml": pod}
    return tree_text(rendered(case), base)


@cache
def rendered(case: str) -> dict[str, str]:
    """What ``deploy`` writes, but for LEFT_OUT and ALIKE."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        write_workspace(Path(scratch))
        write_lock(Path(scratch))
        os.chdir(scratch)  # contextlib.chdir is not in Python 3.10
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                assert cli.main(["deploy", *CASES[case], "--output", "out"]) == 0
        finally:
            os.chdir(before)
        found = read_folder(Path(scratch, "out"))
    return {
        path: text
        for path, text in found.items()
        if Path(path).name not in LEFT_OUT and Path(path).parts[0] != ALIKE
    }


if __name__ == "__main__":
    main()
