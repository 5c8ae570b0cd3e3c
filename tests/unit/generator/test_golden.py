"""The whole generated tree, byte for byte, of the YAMLs in golden/.

Regenerate with ``python -m tests.unit.generator.regenerate``. Python files are copies, so
golden/ holds only what is rendered, each tree in one text.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from generator.render.manifest import MANIFEST_FILE
from tests.support.text_sections import tree_text
from tests.unit.generator.regenerate import rendered_case
from tests.unit.generator.workspace import GOLDEN, golden_cases, snapshot


@pytest.mark.parametrize("case", golden_cases())
def test_the_tree_is_the_golden_one(case: str, work: Path) -> None:
    golden = (GOLDEN / f"{case}.txt").read_text(encoding="utf-8")
    assert tree_text(rendered_case(case, work)) == golden


@pytest.mark.parametrize("case", golden_cases())
def test_what_is_not_rendered_is_a_copy_and_all_is_in_the_manifest(case: str, work: Path) -> None:
    rendered_case(case, work)
    for folder in (work / "golden" / case).iterdir():
        files = snapshot(folder)
        written = files.pop(MANIFEST_FILE).decode()
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
        assert written == json.dumps({"files": hashes}, indent=2, sort_keys=True) + "\n"
        made = {path: text for path, text in files.items() if path.endswith(".py")}
        values = json.loads(files["1/model.json"])
        runs_none = "steps" in values or "file" in values
        assert (made.pop("1/model.py", None) is None) == runs_none
        hooks = values.get("hooks")
        assert made == ({"1/hooks.py": (GOLDEN / hooks).read_bytes()} if hooks else {})
