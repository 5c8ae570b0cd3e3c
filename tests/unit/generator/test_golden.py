"""The whole generated tree, byte for byte, of golden/every_key.yaml.

Regenerate with ``python -m tests.unit.generator.regenerate``. Python files are copies, so
golden/ holds only what is rendered, in one text.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from generator.render.manifest import MANIFEST_FILE
from tests.support.text_sections import tree_text
from tests.unit.generator.regenerate import rendered_golden
from tests.unit.generator.workspace import GOLDEN, snapshot


def test_the_tree_is_the_golden_one(work: Path) -> None:
    golden = (GOLDEN / "every_key.txt").read_text(encoding="utf-8")
    assert tree_text(rendered_golden(work)) == golden


def test_what_is_not_rendered_is_a_copy_and_all_is_in_the_manifest(work: Path) -> None:
    rendered_golden(work)
    for folder in (work / "golden" / "every_key").iterdir():
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
